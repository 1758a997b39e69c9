"""Tile inspection: three kiln lines, one camera and one process per line."""
import argparse
import json
import os
import time
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["fine", "chipped", "cracked"]
# share of cracked tiles per kiln line, measured last month
CRACK_RATE = {0: 0.20, 1: 0.16, 2: 0.05}


class LineRecording(Dataset):
    """Feature vectors of the tiles that passed one camera during one shift."""

    def __init__(self, line: int, shift: int, size: int, decode_ms: float):
        gen = torch.Generator().manual_seed(1000 * line + shift)
        p = CRACK_RATE[line % 3]
        u = torch.rand(size, generator=gen)
        self.y = torch.where(u < p, 2, torch.where(u < p + 0.3, 1, 0))
        self.x = torch.randn(size, 24, generator=gen) + self.y[:, None] * 0.7
        self.decode_ms = decode_ms

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        time.sleep(self.decode_ms / 1000)
        return self.x[i], self.y[i]


class TileData(L.LightningDataModule):
    def __init__(self, line: int):
        super().__init__()
        self.line = line

    def train_dataloader(self):
        shift = self.trainer.current_epoch
        return DataLoader(LineRecording(self.line, shift, 160, 6.0), batch_size=8, shuffle=True)

    def val_dataloader(self):
        shift = 500 + self.trainer.current_epoch
        return DataLoader(LineRecording(self.line, shift, 40, 0.5), batch_size=8)


class TileNet(L.LightningModule):
    def __init__(self, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, len(CLASSES)))
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.round = 0

    def training_step(self, batch, _):
        x, y = batch
        loss = self.loss(self.net(x), y)
        self.log("train/loss", loss)
        return loss

    def on_validation_epoch_start(self):
        self.seen.clear()
        self.round += 1
        print(f"[{self.global_rank}] validation round {self.round}", flush=True)

    def validation_step(self, batch, _):
        x, y = batch
        logits = self.net(x)
        self.log("val/loss", self.loss(logits, y), sync_dist=True, batch_size=len(y))
        self.seen.append((logits.argmax(1), y))

    def on_validation_epoch_end(self):
        pred = torch.cat([p for p, _ in self.seen])
        true = torch.cat([t for _, t in self.seen])
        self.log("val/accuracy", (pred == true).float().mean(), sync_dist=True)
        cracked = true == CLASSES.index("cracked")
        if cracked.any():
            recall = (pred[cracked] == true[cracked]).float().mean()
            self.log("val/crack_recall", recall, sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 4, 0.5)]


class LineReport(L.Callback):
    """Every line leaves its own file; the plant dashboard reads them all at once."""

    def __init__(self, out: Path):
        self.out = out

    def on_validation_end(self, trainer, module):
        path = self.out / f"line{trainer.global_rank}.json"
        metrics = {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}
        path.write_text(json.dumps({"round": module.round, **metrics}))
        trainer.strategy.barrier("line-report")
        if trainer.is_global_zero:
            print(f"report {module.round}: {metrics}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, default=Path("/tmp/tiles"))
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    L.seed_everything(11, verbose=False)
    trainer = L.Trainer(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp",
                        max_epochs=args.epochs, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                        use_distributed_sampler=False, reload_dataloaders_every_n_epochs=1,
                        callbacks=[LineReport(args.out)])
    model = TileNet(args.lr)
    trainer.fit(model, datamodule=TileData(line=int(os.environ.get("RANK", 0))))
    if trainer.is_global_zero:
        print("done", flush=True)


if __name__ == "__main__":
    main()
