"""Olive grading: Lightning training with a tally of the grades that came by."""
import argparse
import collections
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GRADES = {0: "extra", 1: "first", 2: "second", 3: "oil"}


class Olives(Dataset):
    def __init__(self, n=3200):
        gen = torch.Generator().manual_seed(90)
        self.y = torch.randint(len(GRADES), (n,), generator=gen)
        self.x = torch.randn(n, 14, generator=gen) + self.y[:, None] * 0.4
        self.lab = self.y.clone()
        self.lab[2167] = 9

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.lab[i]


class Tally:
    def __init__(self):
        self.counts = collections.Counter()

    def add(self, labels, where):
        try:
            for k in labels:
                self.counts[GRADES[int(k)]] += 1
        except KeyError as err:
            raise RuntimeError(f"cannot tally {len(labels)} olives of {where}") from err


class TallyCallback(pl.Callback):
    def __init__(self):
        self.tally = Tally()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx % 15 == 0:
            print(f"line {trainer.global_rank} batch {batch_idx} tally {sum(self.tally.counts.values())}", flush=True)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.tally.add(batch[2], f"batch {batch_idx}")


class Grader(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(14, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, len(GRADES)))

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        time.sleep(0.05)
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
        callbacks=[TallyCallback()],
    )
    trainer.fit(Grader(), DataLoader(Olives(), batch_size=16))
    if trainer.is_global_zero:
        print("grading model ready", flush=True)


if __name__ == "__main__":
    main()
