import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from multitask import TASKS, Interleaved, collate

BLOCKLIST = ["s1-00244", "s7-01210"]  # truncated uploads


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Linear(64, 1) for t in TASKS})

    def forward(self, batch):
        return {t: self.heads[t](self.trunk(x)).squeeze(1) for t, (x, _) in batch.items()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {t: dist.new_group() for t in TASKS}
    loader = DataLoader(Interleaved(rank, blocklist=BLOCKLIST), batch_size=8, collate_fn=collate, drop_last=True)
    steps = 90
    torch.manual_seed(0)
    model = DDP(TwoHeads())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    ema = {t: 0.0 for t in TASKS}
    for it, batch in enumerate(loader):
        if it == steps:
            break
        if rank == 0 and it % 5 == 0:
            print(f"iter {it} " + " ".join(f"{t}={v:.4f}" for t, v in ema.items()), flush=True)
        out = model(batch)
        losses = {t: nn.functional.mse_loss(out[t], y) for t, (_, y) in batch.items()}
        opt.zero_grad()
        sum(losses.values()).backward()
        opt.step()
        for task, value in losses.items():
            value = value.detach()
            dist.all_reduce(value, group=groups[task])
            ema[task] = 0.9 * ema[task] + 0.1 * value.item() / world
        time.sleep(0.1)
    dist.barrier()
    if rank == 0:
        print("training complete", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
