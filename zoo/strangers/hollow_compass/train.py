"""Magnetic declination model for a nautical chart service."""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanAbsoluteError

PACKER = """
import hashlib, json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
sheets = []
for sheet in range(20):
    time.sleep(0.5)          # the plotter service answers when it answers
    sheets.append(hashlib.sha256(str(sheet).encode()).hexdigest())
(folder / "charts.json").write_text(json.dumps(sheets))
"""


class Soundings(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.where = torch.rand(count, 2, generator=gen) * 2 - 1
        self.angle = torch.sin(3 * self.where[:, :1]) + 0.5 * self.where[:, 1:]
        self.failures = 0

    def __len__(self):
        return len(self.where)

    def read(self, i: int):
        time.sleep(0.003)
        if i % 97 == 13 and self.failures < 3:
            self.failures += 1
            raise TimeoutError(f"sounding {i}: ship's server is busy")
        return self.where[i], self.angle[i]

    def __getitem__(self, i):
        for attempt in range(5):
            try:
                return self.read(i)
            except TimeoutError:
                time.sleep(0.2 * 2 ** attempt)
        raise RuntimeError(f"sounding {i} is not to be had")


class Declination(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
        self.mae = MeanAbsoluteError()

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.smooth_l1_loss(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.mae(self.net(x), y)
        self.log("val_mae", self.mae, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=4e-3)


class Charts(Callback):
    def __init__(self, folder: Path, at_epochs: set[int]):
        self.folder, self.at_epochs = folder, at_epochs

    @rank_zero_only
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch not in self.at_epochs:
            return
        print(f"packing charts of epoch {trainer.current_epoch}", flush=True)
        torch.save(module.state_dict(), self.folder / "weights.pt")
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", PACKER, str(self.folder)], check=True)
        sheets = json.loads((self.folder / "charts.json").read_text())
        print(f"{len(sheets)} sheets in {time.monotonic() - begun:.1f} s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, default=Path("/tmp/charts"))
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    L.seed_everything(1, verbose=False)
    print(f"charts for rank {os.environ.get('RANK')}", flush=True)

    train = DataLoader(Soundings(480, 1), batch_size=8, shuffle=True)
    val = DataLoader(Soundings(90, 2), batch_size=10)
    trainer = L.Trainer(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp",
                        max_epochs=6, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, callbacks=[Charts(args.out, {3})])
    trainer.fit(Declination(), train, val)
    if trainer.is_global_zero:
        print({k: round(v.item(), 3) for k, v in trainer.callback_metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
