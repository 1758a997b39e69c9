import os
import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class SiteRecords(IterableDataset):
    """Held-out records of this site; the sites are not equally large and nothing is dropped."""

    SIZES = (6, 32, 15)

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        gen = torch.Generator().manual_seed(100 + self.rank)
        for _ in range(self.SIZES[self.rank]):
            x = torch.randn(4, 10, generator=gen)
            yield x, x.sum(1)


class SiteModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(-1), y)
        self.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        draws = []
        for _ in range(10):
            noisy = x + 0.05 * torch.randn_like(x)
            draws.append(self.net(noisy).squeeze(-1))
            time.sleep(0.02)
        self.log("val/loss", nn.functional.mse_loss(torch.stack(draws).mean(0), y), on_epoch=True, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        print(f"[rank {self.global_rank}] own validation done, epoch {self.current_epoch}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class SiteData(L.LightningDataModule):
    def train_dataloader(self):
        gen = torch.Generator().manual_seed(3)
        x = torch.randn(768, 10, generator=gen)
        return DataLoader(TensorDataset(x, x.sum(1)), batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(SiteRecords(self.trainer.global_rank), batch_size=None)


def main():
    torch.set_num_threads(1)
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print("fit begins", flush=True)
    trainer.fit(SiteModel(), datamodule=SiteData())
    print(f"[rank {trainer.global_rank}] {trainer.callback_metrics['val/loss'].item():.4f}", flush=True)


if __name__ == "__main__":
    main()
