import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

from shards import ShardReader, write_shards


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(-1), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        if self.trainer.is_global_zero and batch_idx % 20 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Corpus(L.LightningDataModule):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def prepare_data(self):
        write_shards(self.folder, [640, 640, 640, 640, 560, 640])

    def train_dataloader(self):
        return DataLoader(ShardReader(self.folder), batch_size=16)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    args = parser.parse_args()
    L.seed_everything(2)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regressor(), datamodule=Corpus(args.data))
    if trainer.is_global_zero:
        print("done", flush=True)


if __name__ == "__main__":
    main()
