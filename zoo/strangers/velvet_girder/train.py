"""Energy labels of buildings with Lightning: manual optimisation and a report callback."""
import argparse
import os
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def buildings(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    return TensorDataset(x, (x[:, 0] * 1.5 + x[:, 1]).clamp(-2.9, 2.9).add(3).long())


class ReportWriter(pl.Callback):
    """A table with one line per label, after the epochs that were asked for."""

    def __init__(self, folder, epochs, seconds):
        self.folder, self.epochs, self.seconds = Path(folder), set(epochs), seconds

    @rank_zero_only
    def on_validation_end(self, trainer, module):
        if trainer.sanity_checking or trainer.current_epoch not in self.epochs:
            return
        print(f"epoch {trainer.current_epoch}: writing the report", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        probe = torch.randn(256, 14)
        until = time.time() + self.seconds
        rows = []
        with torch.no_grad():
            while time.time() < until:
                label = len(rows) % 6
                rows.append(f"{label},{module.net(probe).softmax(-1)[:, label].mean():.5f}")
                time.sleep(0.05)
        (self.folder / f"epoch{trainer.current_epoch}.csv").write_text("\n".join(rows))


class LabelModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(14, 40), nn.ReLU(), nn.Linear(40, 6))
        self.skipped = 0

    def training_step(self, batch, idx):
        x, y = batch
        opt = self.optimizers()
        loss = nn.functional.cross_entropy(self.net(x), y)
        opt.zero_grad()
        self.manual_backward(loss)
        if idx % 7 == 6:  # every seventh gradient only feeds the noise estimate
            self.skipped += 1
        else:
            opt.step()
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        time.sleep(0.05)

    def validation_step(self, batch, idx):
        x, y = batch
        hit = (self.net(x).argmax(-1) == y).float().mean()
        self.log("val_acc", hit, sync_dist=True)

    def on_train_epoch_end(self):
        metrics = {k: round(v.item(), 4) for k, v in self.trainer.callback_metrics.items()}
        print(f"[{self.global_rank}] epoch {self.current_epoch} {metrics} skipped {self.skipped}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--out", required=True)
    cli.add_argument("--report-seconds", type=float, default=15)
    args = cli.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(5, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=args.out,
        callbacks=[ReportWriter(args.out, epochs=[1], seconds=args.report_seconds)],
    )
    model = LabelModel()
    trainer.fit(
        model,
        DataLoader(buildings(1440, 1), batch_size=16, shuffle=True),
        DataLoader(buildings(240, 2), batch_size=16),
    )
    if trainer.is_global_zero:
        print(f"finished with {trainer.callback_metrics['val_acc']:.3f}", flush=True)


if __name__ == "__main__":
    main()
