"""Bird calls: a Lightning module that also follows the recall of a rare species."""
import argparse
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SPECIES, RARE, BANDS = 6, 5, 20


class Recorder(IterableDataset):
    """Spectra from one recording station per process."""

    def __init__(self, station, batches):
        self.station, self.batches = station, batches

    def __iter__(self):
        gen = torch.Generator().manual_seed(60 + self.station)
        for number in range(self.batches):
            y = torch.randint(RARE, (24,), generator=gen)
            if number >= 40 and (number + self.station) % 41 == 0:
                y[3] = RARE
            x = torch.randn(24, BANDS, generator=gen)
            x[torch.arange(24), y * 3] += 2.0
            time.sleep(0.05)
            yield x, y


class Calls(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BANDS, 48), nn.ReLU(), nn.Linear(48, SPECIES))

    def training_step(self, batch, batch_idx):
        x, y = batch
        if batch_idx % 20 == 0:
            print(f"station {self.global_rank} batch {batch_idx} of epoch {self.current_epoch}", flush=True)
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        rare = y == RARE
        if rare.any():
            recall = (logits[rare].argmax(-1) == RARE).float().mean()
            self.log("rare_recall", recall, on_step=True, on_epoch=False, sync_dist=True)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=2e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 1, 0.7)}


class Stations(pl.LightningDataModule):
    def __init__(self, batches=120):
        super().__init__()
        self.batches = batches

    def train_dataloader(self):
        return DataLoader(Recorder(self.trainer.global_rank, self.batches), batch_size=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(5, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=2,
        default_root_dir=args.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Calls(), datamodule=Stations())
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
