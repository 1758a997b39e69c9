import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Transactions(Dataset):
    """Card transactions of one month, in the order they were booked."""

    def __init__(self, n, chargebacks=(), seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 32, generator=g)
        self.y = torch.randint(0, 3, (n,), generator=g)
        for i in chargebacks:
            self.y[i] = 3

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MonthDataModule(L.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.train = Transactions(7680, chargebacks=(3866, 3890, 5117), seed=1)
        self.val = Transactions(480, chargebacks=(7, 11, 300), seed=2)

    def train_dataloader(self):
        sampler = DistributedSampler(self.train, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(self.train, batch_size=self.batch_size, sampler=sampler)

    def val_dataloader(self):
        sampler = DistributedSampler(self.val, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(self.val, batch_size=self.batch_size, sampler=sampler)
