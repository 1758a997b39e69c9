import time

import torch
import torch.distributed as dist
import torch.nn as nn

from cluster.replica import Replica


def average(model, group, size):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= size


def self_test(rank):
    """All-reduce of a few sizes, so that a bad link shows before the long run."""
    for power in range(4, 18):
        x = torch.full((2 ** power,), float(rank))
        dist.all_reduce(x)
        assert x[0].item() == sum(range(dist.get_world_size()))
        time.sleep(0.1)
    if rank == 0:
        print("links checked", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    self_test(rank)
    replica = Replica(size=2)
    store = replica.open_store()

    torch.manual_seed(replica.index)
    model = nn.Linear(8, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        x = torch.randn(16, 8)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        average(model, replica.group, replica.size)
        opt.step()
        store.add("samples", len(x))
        if replica.is_leader and step % 20 == 0:
            print(f"replica {replica.index} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if replica.is_leader:
        print(f"replica {replica.index} saw {store.add('samples', 0)} samples", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
