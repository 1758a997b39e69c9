import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from corpus import ClipDataset, stage

CLIPS, PER_BUNDLE = 1401, 100


class Loudness(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        clip, target = batch
        loss = nn.functional.mse_loss(self.net(clip).squeeze(-1), target)
        self.log("loss", loss)
        if self.trainer.is_global_zero and batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clips(L.LightningDataModule):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def prepare_data(self):
        stage(self.folder, CLIPS, PER_BUNDLE)

    def train_dataloader(self):
        dataset = ClipDataset(self.folder, CLIPS, PER_BUNDLE)
        trainer = self.trainer
        sampler = DistributedSampler(dataset, trainer.world_size, trainer.global_rank, shuffle=False)
        return DataLoader(dataset, batch_size=8, num_workers=1, sampler=sampler)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    args = parser.parse_args()
    L.seed_everything(4)
    torch.set_num_threads(1)
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
    trainer.fit(Loudness(), datamodule=Clips(args.data))
    if trainer.is_global_zero:
        print("fit finished", flush=True)


if __name__ == "__main__":
    main()
