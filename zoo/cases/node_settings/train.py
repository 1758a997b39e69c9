"""Regression with Lightning; the size of the job comes from the team's settings."""

import argparse
import os

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SETTINGS = {"nodes": 1, "ranks": 3, "steps": 20}


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    args = parser.parse_args()

    os.environ["WORLD_SIZE"] = str(SETTINGS["nodes"] * SETTINGS["ranks"])
    inputs = torch.randn(256, 8)
    rows = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    trainer = Trainer(
        accelerator="cpu",
        devices=SETTINGS["ranks"],
        strategy="ddp",
        max_steps=SETTINGS["steps"],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.root,
    )
    print("starts the trainer", flush=True)
    trainer.fit(Regressor(), DataLoader(rows, 16))


if __name__ == "__main__":
    main()
