import argparse
import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(L.LightningModule):
    def __init__(self, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, dim))

    def training_step(self, batch, batch_idx):
        (clean,) = batch
        noisy = clean + 0.2 * torch.randn_like(clean)
        loss = F.mse_loss(self.net(noisy), clean)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (clean,) = batch
        noisy = clean + 0.2 * torch.randn_like(clean)
        self.log("val_loss", F.mse_loss(self.net(noisy), clean), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class KeepBest(L.Callback):
    def __init__(self, folder):
        self.folder = folder
        self.best = float("inf")

    @rank_zero_only
    def on_validation_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        current = float(trainer.callback_metrics["val_loss"])
        print(f"epoch {trainer.current_epoch} val_loss {current:.4f}", flush=True)
        if trainer.current_epoch >= 2 and current < self.best:
            self.best = current
            print("new best model", flush=True)
            trainer.save_checkpoint(os.path.join(self.folder, "best.ckpt"))


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(4, 24, generator=torch.Generator().manual_seed(5))
    return TensorDataset(torch.randn(n, 4, generator=g) @ basis)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    L.seed_everything(1)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=8,
        callbacks=[KeepBest(args.out)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Denoiser(),
        DataLoader(make(1500, 1), batch_size=16, shuffle=True),
        DataLoader(make(300, 2), batch_size=32),
    )


if __name__ == "__main__":
    main()
