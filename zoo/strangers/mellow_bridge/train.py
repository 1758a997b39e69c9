"""Click model on per-rank logs of very different size."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class ClickModel(nn.Module):
    def __init__(self, users=200, items=300, dim=16):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.top = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.top(torch.cat([self.user(u), self.item(i)], dim=-1)).squeeze(-1)


def log_of_day(rank, day):
    """Region `rank` had this many batches on that day."""
    batches = [35, 70, 130][(rank + day) % 3]
    gen = torch.Generator().manual_seed(97 * day + rank)
    for _ in range(batches):
        u = torch.randint(0, 200, (32,), generator=gen)
        i = torch.randint(0, 300, (32,), generator=gen)
        yield u, i, ((u + i) % 3 == 0).float()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(ClickModel())
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
    for day in range(2):
        seen, total = 0, 0.0
        with Join([model, opt]):
            for u, i, y in log_of_day(rank, day):
                loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += 1
                total += loss.item()
            print(f"day {day}: rank {rank} has read its {seen} batches", flush=True)
        stats = torch.tensor([total, float(seen)])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"day {day} loss {(stats[0] / stats[1]).item():.4f} over {int(stats[1])} batches", flush=True)
    opt.consolidate_state_dict(to=0)
    if rank == 0:
        print("optimizer entries", len(opt.state_dict()["state"]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
