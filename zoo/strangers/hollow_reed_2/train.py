import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

JOBS = 36


def jobs(store, total):
    """Work stealing: whoever is free takes the next number."""
    while True:
        index = store.add("jobs/next", 1) - 1
        if index >= total:
            return
        yield index


def prepare(index, rank):
    gen = torch.Generator().manual_seed(index)
    x = torch.randn(48, 10, generator=gen)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    # files at the start of the list are large
    time.sleep(6.0 if index == 0 else 0.1 + 0.05 * (index % 4))
    return list(zip(x.split(8), y.split(8)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
    )
    store = dist.PrefixStore(f"work-{os.environ.get('TORCHELASTIC_RUN_ID', 'local')}", store)

    batches, files = [], 0
    for index in jobs(store, JOBS):
        batches += prepare(index, rank)
        files += 1
    print(f"rank {rank} prepared {files} files, {len(batches)} batches", flush=True)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        total, count = 0.0, 0
        with Join([model]):
            for x, y in batches:
                loss = (model(x) - y).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item()
                count += 1
                time.sleep(0.01)
        stats = torch.tensor([total, float(count)])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch}: {int(stats[1])} batches, loss {stats[0] / stats[1]:.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
