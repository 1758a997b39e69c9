import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F

from corpus import CorpusDataModule


class NextWord(L.LightningModule):
    def __init__(self, vocab_size=1001, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab_size)

    def training_step(self, batch, batch_idx):
        (ids,) = batch
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        loss = F.cross_entropy(self.head(h).flatten(0, 1), ids[:, 1:].flatten())
        self.log("loss", loss)
        if batch_idx % 10 == 0:
            self.print(f"step {batch_idx} loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", default="data")
    ap.add_argument("--epochs", type=int, default=1)
    args = ap.parse_args()
    L.seed_everything(1)
    dm = CorpusDataModule(args.root)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp",
        max_epochs=args.epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(NextWord(), datamodule=dm)
    trainer.print("done")


if __name__ == "__main__":
    main()
