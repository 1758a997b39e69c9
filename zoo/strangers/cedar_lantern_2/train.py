import argparse
import os
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from data import MonthDataModule
from module import TransactionNet


class StepPrinter(Callback):
    def __init__(self, every=10):
        self.every = every

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.is_global_zero and batch_idx % self.every == 0:
            loss = trainer.callback_metrics.get("train_loss", torch.tensor(0.0))
            print(f"epoch {trainer.current_epoch} step {batch_idx} loss {loss:.4f}", flush=True)

    def on_validation_end(self, trainer, pl_module):
        if trainer.is_global_zero and not trainer.sanity_checking:
            print(f"val_acc {trainer.callback_metrics['val_acc']:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    L.seed_everything(7)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy="ddp",
        use_distributed_sampler=False,
        max_epochs=args.epochs,
        callbacks=[StepPrinter()],
        default_root_dir=args.out or tempfile.gettempdir(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TransactionNet(), datamodule=MonthDataModule())
    print("finished", flush=True)


if __name__ == "__main__":
    main()
