import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class FeatureTable:
    """User features by id. The table can be read again while it is in use."""

    def __init__(self, dim):
        self.dim = dim
        self.lock = threading.Lock()
        self.rows = {}
        self.read(2000)

    def read(self, count):
        self.lock.acquire()
        try:
            gen = torch.Generator().manual_seed(0)
            for start in range(0, count, 500):
                block = torch.randn(500, self.dim, generator=gen)
                for i, row in enumerate(block):
                    self.rows[start + i] = row
                if start >= 2000:
                    time.sleep(0.25)
        finally:
            self.lock.release()

    def read_in_background(self, count):
        threading.Thread(target=self.read, args=(count,), daemon=True).start()

    def lookup(self, key):
        with self.lock:
            return self.rows[key]


class Clicks(Dataset):
    def __init__(self, table, size):
        self.table = table
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(0.002)
        row = self.table.lookup((index * 37) % 2000)
        return row, row[:2].sum().unsqueeze(0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    table = FeatureTable(dim=16)
    data = Clicks(table, 1600)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        if epoch == 2 and rank == 0:
            # the evaluation job on rank 0 needs the new users as well
            print("index grew, reading it again", flush=True)
            table.read_in_background(12000)
        for features, target in loader:
            loss = (model(features) - target).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)

    dist.barrier()
    if rank == 0:
        print(f"{len(table.rows)} users in the table", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
