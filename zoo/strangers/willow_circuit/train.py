import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F

import settings
from sensors import read_shard


class PlantModel(nn.Module):
    def __init__(self, sensors, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(sensors, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def batches(site, shard, cfg):
    raw, target = read_shard(site, shard, cfg.data.rows, cfg.data.sensors)
    window = (raw - raw.mean(0)) / raw.std(0)
    order = torch.randperm(len(window))
    for idx in order.split(cfg.data.batch):
        yield window[idx], target[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="run.yaml")
    ap.add_argument("overrides", nargs="*")
    args = ap.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    cfg = settings.load(os.path.join(here, args.config), args.overrides)

    accelerator = Accelerator(cpu=True)
    set_seed(cfg.seed, device_specific=False)
    model = PlantModel(cfg.data.sensors, cfg.model.width)
    optimizer = torch.optim.AdamW(model.parameters(), cfg.optim.lr)
    model, optimizer = accelerator.prepare(model, optimizer)

    for shard in range(cfg.data.shards):
        accelerator.print(f"shard {shard} of {cfg.data.shards}", flush=True)
        total, n = torch.zeros(()), 0
        for window, target in batches(accelerator.process_index, shard, cfg):
            pred = model(window)
            loss = F.smooth_l1_loss(pred, target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total, n = total + loss.detach(), n + 1
        mean = accelerator.reduce(total / n, reduction="mean")
        accelerator.print(f"  mean loss {mean.item():.4f}", flush=True)
    accelerator.free_memory(model, optimizer)
    accelerator.end_training()


if __name__ == "__main__":
    main()
