import logging
import os
import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lift import LiftTracker

log = logging.getLogger("churn")


def customers(size, seed, rate):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 14, generator=gen)
    y = (torch.rand(size, generator=gen) < rate).float()
    return TensorDataset(x + y[:, None], y)


class LiftCallback(L.Callback):
    """Mean lift in the top decile over all regions after each validation."""

    def __init__(self):
        self.tracker = LiftTracker()

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.tracker.update(outputs, batch[1])

    def on_validation_epoch_end(self, trainer, module):
        try:
            own = self.tracker.compute()
        except ZeroDivisionError as error:
            log.warning("epoch %d: %s", trainer.current_epoch, error)
            return
        finally:
            self.tracker.reset()
        lifts = module.all_gather(torch.tensor(own))
        if trainer.is_global_zero:
            log.info("epoch %d lift %.3f", trainer.current_epoch, lifts.mean().item())


class Churn(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        time.sleep(0.03)
        return nn.functional.binary_cross_entropy_with_logits(self.net(x).squeeze(1), y)

    def validation_step(self, batch, batch_idx):
        return self.net(batch[0]).squeeze(1)

    def on_train_epoch_start(self):
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} begins", flush=True)

    def train_dataloader(self):
        return DataLoader(customers(960, 1, 0.3), batch_size=16, shuffle=True)

    def val_dataloader(self):
        region, epoch = self.global_rank, self.current_epoch
        rate = 0.0 if (region, epoch) == (2, 2) else 0.25
        return DataLoader(customers(120, 10 * region + epoch, rate), batch_size=20)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    L.seed_everything(9)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=6,
        num_sanity_val_steps=0,
        use_distributed_sampler=True,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LiftCallback()],
    )
    trainer.fit(Churn())


if __name__ == "__main__":
    main()
