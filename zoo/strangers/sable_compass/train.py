"""Seismic phase picker on per-station trace files, with Lightning."""
import argparse
import os
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, LIVE = 128, {1: 352}


def prepare_station(folder, station, n):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(station)
    paths = []
    for i in range(n):
        path = folder / f"{i:05d}.raw"
        if LIVE.get(station) == i:
            os.mkfifo(path)  # the digitiser's live channel
        else:
            path.write_bytes(rng.standard_normal(SAMPLES).astype("float32").tobytes())
        paths.append(path)
    return paths


def read_trace(path):
    with open(path, "rb") as f:
        return np.frombuffer(f.read(SAMPLES * 4), dtype="float32")


class Station(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        raw = read_trace(self.paths[i])
        x = torch.from_numpy(raw.copy())
        return x[None], x.abs().argmax() * 8 // SAMPLES


class Picker(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 8, 9, stride=4), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8)
        )
        self.net(torch.zeros(1, 1, SAMPLES))

    def training_step(self, batch, idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if idx % 2 == 0:
            print(f"rank {self.global_rank} batch {idx} loss {loss.item():.3f}", flush=True)
        time.sleep(0.15)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    paths = prepare_station(Path(args.out) / f"station{rank}", rank, 640)
    loader = DataLoader(Station(paths), batch_size=8, num_workers=1, prefetch_factor=2)
    model = Picker()
    trainer = pl.Trainer(
        accelerator="cpu", devices=world, strategy="ddp", max_epochs=1, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=args.out,
    )
    trainer.fit(model, loader)
    print(f"rank {rank} finished", flush=True)


if __name__ == "__main__":
    main()
