import argparse
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from callbacks.metric import MacroAccuracy
from callbacks.report import ReportPublisher


class Blobs(L.LightningDataModule):
    def setup(self, stage):
        g = torch.Generator().manual_seed(0)
        centers = torch.randn(5, 16, generator=g) * 2
        y = torch.randint(0, 5, (3000,), generator=g)
        x = centers[y] + torch.randn(3000, 16, generator=g)
        self.train, self.val = TensorDataset(x[:2400], y[:2400]), TensorDataset(x[2400:], y[2400:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=50)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 5))
        self.val_acc = MacroAccuracy(5)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.val_acc.update(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", self.val_acc)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    ap.add_argument("--tracker", default="http://127.0.0.1:9/api/report")
    args = ap.parse_args()
    L.seed_everything(11)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp",
        max_epochs=3, default_root_dir=args.out, logger=False,
        callbacks=[
            ModelCheckpoint(dirpath=os.path.join(args.out, "ckpt"), monitor="val_loss", save_top_k=1),
            ReportPublisher(args.tracker, os.path.join(args.out, "reports")),
        ],
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=Blobs())
    trainer.print("best checkpoint:", trainer.checkpoint_callback.best_model_path)


if __name__ == "__main__":
    main()
