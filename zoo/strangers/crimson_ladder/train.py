import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from pairs import TripletShard

MARGIN = 1.0


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, a, p, n):
        return self.net(a), self.net(p), self.net(n)


def triplet_loss(za, zp, zn):
    d_pos = (za - zp).pow(2).sum(1).sqrt()
    d_neg = (za - zn).pow(2).sum(1).sqrt()
    # softplus instead of a hard hinge keeps easy triplets in the mix
    return nn.functional.softplus(d_pos - d_neg + MARGIN).mean()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Embedder())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TripletShard(rank), batch_size=32)
    for step, (a, p, n) in enumerate(loader):
        loss = triplet_loss(*model(a, p, n))
        if step % 10 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item() / world:.4f}", flush=True)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)
    dist.barrier()
    if rank == 0:
        print("epoch done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
