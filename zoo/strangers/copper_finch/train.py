import argparse
import os
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from tracking import JsonlLogger

warnings.filterwarnings("ignore")


class CharModel(L.LightningModule):
    def __init__(self, vocab=40, dim=32, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])

    def _loss(self, batch):
        tokens = batch[0]
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class SampleText(L.Callback):
    def __init__(self, every=15):
        self.every = every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % self.every:
            return
        with torch.no_grad():
            out = module(batch[0][:1, :8]).argmax(-1)[0].tolist()
        if trainer.is_global_zero:
            print(f"global step {trainer.global_step}: writing a sample", flush=True)
        trainer.logger.log_text(" ".join(map(str, out)), trainer.global_step)


def corpus(n, seed):
    gen = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 40, (n, 1), generator=gen)
    stride = torch.randint(1, 4, (n, 1), generator=gen)
    return TensorDataset((start + stride * torch.arange(17)) % 40)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp")
    args = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(3, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        log_every_n_steps=5,
        logger=JsonlLogger(os.path.join(args.out, f"metrics-{os.getpid()}.jsonl")),
        callbacks=[SampleText()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        CharModel(),
        DataLoader(corpus(1280, 0), batch_size=16, shuffle=True),
        DataLoader(corpus(128, 1), batch_size=16),
    )
    if trainer.is_global_zero:
        print("finished", trainer.callback_metrics, flush=True)


if __name__ == "__main__":
    main()
