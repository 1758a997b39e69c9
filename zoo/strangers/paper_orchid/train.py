"""Plant catalogue classifier with Lightning: text preparation, validation and checkpoints."""
import argparse
import json
import random
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FAMILIES, WORDS, LENGTH = 5, 80, 12


class Catalogue(pl.LightningDataModule):
    def __init__(self, folder, entries=1200):
        super().__init__()
        self.path, self.entries = Path(folder) / "catalogue.json", entries

    def prepare_data(self):
        rng = random.Random(1)
        rows = []
        for i in range(self.entries):
            family = rng.randrange(FAMILIES)
            words = [rng.randrange(10) + 14 * family for _ in range(LENGTH)]
            rows.append([family, words])
            time.sleep(0.01)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(rows))
        print("catalogue ready", flush=True)

    def setup(self, stage):
        rows = json.loads(self.path.read_text())
        y = torch.tensor([r[0] for r in rows])
        x = torch.tensor([r[1] for r in rows])
        cut = len(rows) * 4 // 5
        self.train, self.val = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=32)


class Samples(pl.Callback):
    """The first process writes a few predictions after each validation."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @rank_zero_only
    def on_validation_end(self, trainer, pl_module):
        with torch.no_grad():
            out = pl_module.net(torch.randint(WORDS, (4, LENGTH))).argmax(-1)
        time.sleep(2.0)
        (self.folder / f"samples{trainer.current_epoch}.txt").write_text(str(out.tolist()))


class Botanist(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.EmbeddingBag(WORDS, 24), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, FAMILIES))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        time.sleep(0.05)
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        acc = (self.net(x).argmax(-1) == y).float().mean()
        self.log("val_acc", acc, sync_dist=True)

    def on_validation_epoch_end(self):
        acc = self.trainer.callback_metrics.get("val_acc")
        if acc is not None and self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} val_acc {acc:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    pl.seed_everything(2, verbose=False)
    keep = ModelCheckpoint(dirpath=out, monitor="val_acc", mode="max", save_top_k=1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
        callbacks=[keep, Samples(out)],
        num_sanity_val_steps=0,
    )
    trainer.fit(Botanist(), datamodule=Catalogue(out))
    print(f"rank {trainer.global_rank} best {keep.best_model_score:.3f}", flush=True)


if __name__ == "__main__":
    main()
