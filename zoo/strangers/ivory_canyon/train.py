import glob
import os
import sys
import warnings

import lightning as L
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

warnings.filterwarnings("ignore")


class ShardStream(IterableDataset):
    """Streams the rows of this rank's share of the shard files."""

    def __init__(self, folder):
        self.files = sorted(glob.glob(os.path.join(folder, "shard-*.pt")))

    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        info = get_worker_info()
        mine = self.files[rank::world]
        if info is not None:
            mine = mine[info.id :: info.num_workers]
        for path in mine:
            x, y = torch.load(path)
            yield from zip(x, y)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(-1), y)
        self.log("train_loss", loss)
        if batch_idx % 5 == 0 and self.global_rank == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}", flush=True)
        return loss

    def on_train_epoch_end(self):
        mean = self.all_gather(self.trainer.callback_metrics["train_loss"]).mean()
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} done, mean of last losses {mean.item():.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def export_shards(folder, sizes):
    os.makedirs(folder, exist_ok=True)
    gen = torch.Generator().manual_seed(0)
    for i, n in enumerate(sizes):
        x = torch.randn(n, 10, generator=gen)
        torch.save((x, x[:, :3].sum(1)), os.path.join(folder, f"shard-{i:03d}.pt"))


def main():
    folder = os.path.join(sys.argv[1], "shards")
    torch.set_num_threads(1)
    L.seed_everything(1, verbose=False)
    if os.environ["RANK"] == "0":
        export_shards(folder, [160, 160, 160, 160, 160, 160, 160, 96])
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regressor()
    trainer.strategy.setup_environment()
    trainer.strategy.barrier("shards")
    trainer.fit(model, DataLoader(ShardStream(folder), batch_size=16))
    if trainer.is_global_zero:
        print("fit finished", flush=True)


if __name__ == "__main__":
    main()
