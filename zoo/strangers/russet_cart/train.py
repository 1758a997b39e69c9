import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

from clips import Clips


class Sounds(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, batch_idx):
        wave, label = batch
        loss = nn.functional.cross_entropy(self.net(wave), label)
        if self.trainer.is_global_zero and batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class SoundData(L.LightningDataModule):
    def train_dataloader(self):
        clips = Clips(site=self.trainer.global_rank, size=600)
        return DataLoader(clips, batch_size=8, num_workers=2, prefetch_factor=2)


def main():
    torch.set_num_threads(1)
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Sounds(), datamodule=SoundData())


if __name__ == "__main__":
    main()
