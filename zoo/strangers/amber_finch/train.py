import os
import time

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy

from data import Rings


class RingNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
        self.val_acc = BinaryAccuracy()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc.update(logits.argmax(1), y)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", self.val_acc)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class RobustnessReport(L.Callback):
    """Perturbs the whole held-out set many times and reports the accuracy under noise."""

    def __init__(self, dataset, rounds):
        self.dataset = dataset
        self.rounds = rounds

    @rank_zero_only
    def evaluate(self, pl_module):
        net = pl_module.net
        deadline = time.monotonic() + self.rounds
        hits, seen = 0, 0
        with torch.no_grad():
            while time.monotonic() < deadline:
                noisy = self.dataset.x + 0.3 * torch.randn_like(self.dataset.x)
                hits += (net(noisy).argmax(1) == self.dataset.y).sum().item()
                seen += len(self.dataset)
        print(f"accuracy under noise: {hits / seen:.3f} over {seen} points", flush=True)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch != 1:
            return
        if trainer.is_global_zero:
            print("starting robustness report", flush=True)
        self.evaluate(pl_module)
        trainer.strategy.barrier("robustness")


def main():
    L.seed_everything(7)
    torch.set_num_threads(1)
    held_out = Rings(2000, seed=2)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        callbacks=[RobustnessReport(held_out, rounds=18)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        RingNet(),
        DataLoader(Rings(3000, seed=1), batch_size=32, shuffle=True),
        DataLoader(held_out, batch_size=100),
    )
    if trainer.is_global_zero:
        print("val_acc", float(trainer.callback_metrics["val_acc"]), flush=True)


if __name__ == "__main__":
    main()
