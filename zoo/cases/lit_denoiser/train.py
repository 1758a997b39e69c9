"""A denoiser trained and validated with Lightning."""

import argparse
import time

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 12))

    def training_step(self, batch, index):
        time.sleep(0.03)
        (clean,) = batch
        loss = nn.functional.mse_loss(self.layers(clean + 0.1 * torch.randn_like(clean)), clean)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        (clean,) = batch
        self.log("error", nn.functional.mse_loss(self.layers(clean), clean), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=CSVLogger(args.root),
        callbacks=[ModelCheckpoint(args.root, monitor="error")],
        default_root_dir=args.root,
    )
    rows = TensorDataset(torch.randn(960, 12))
    held_out = TensorDataset(torch.randn(320, 12))
    trainer.fit(Denoiser(), DataLoader(rows, 16, shuffle=True), DataLoader(held_out, 16))
    print(f"error {trainer.callback_metrics['error']:.4f}", flush=True)


if __name__ == "__main__":
    main()
