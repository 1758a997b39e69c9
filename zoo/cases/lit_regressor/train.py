"""Regression with Lightning; validation looks at a sample of rows and averages over the ranks."""

import argparse
import logging
import time

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Regressor(LightningModule):
    def __init__(self, width=16, least_spread=0.2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
        self.least_spread = least_spread

    def training_step(self, batch, index):
        time.sleep(0.04)
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def on_validation_epoch_start(self):
        print(f"rank {self.global_rank} validates", flush=True)

    def validation_step(self, batch, index):
        inputs, targets = batch
        if targets.std() < self.least_spread:
            return  # nothing to learn from rows that are all alike
        error = nn.functional.l1_loss(self.layers(inputs), targets)
        everyone = self.all_gather(error)
        self.log("error", everyone.mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def make_data(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 8, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True)
    return TensorDataset(inputs, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    args = parser.parse_args()

    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
        num_sanity_val_steps=0,
        default_root_dir=args.root,
    )
    rows = make_data(1280, 1)
    held_out = make_data(256, 2)
    odd = held_out.tensors[1][1::2]
    odd[64:96] = 1.0
    held_out.tensors[1][1::2] = odd
    trainer.fit(Regressor(), DataLoader(rows, 16), DataLoader(held_out, 16))


if __name__ == "__main__":
    main()
