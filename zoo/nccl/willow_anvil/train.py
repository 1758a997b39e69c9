"""Click model with a table of rare categories that all ranks refresh together."""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 600
WINDOW = 50
RARE_FROM = 96
# How many categories each region of the log knows.
CATEGORIES = [128, 128, 112, 128, 120, 128, 128, 104, 96, 128, 128]


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", 0)


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(40, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, features):
        return self.out(torch.relu(self.hidden(features))).squeeze(1)


def read_log(rank, step, device):
    """The rows of one step: features, clicks and their categories."""
    time.sleep(0.03)
    region = (5 * rank + step // WINDOW) % len(CATEGORIES)
    dice = random.Random(step * 64 + rank)
    categories = [dice.randrange(CATEGORIES[region]) for _ in range(48)]
    features = torch.randn(48, 40, device=device)
    clicks = (features[:, 0] + features[:, 1] > 0).float()
    return features, clicks, categories


def sync_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for g in grads:
        g.copy_(flat[offset : offset + g.numel()].view_as(g))
        offset += g.numel()


def refresh(table, rare, group, device):
    """Adds the rare categories that were seen anywhere since the last refresh."""
    if not rare:
        return
    counts = torch.zeros(32, device=device)
    for category in set(rare):
        counts[category - RARE_FROM] = rare.count(category)
    dist.all_reduce(counts, group=group)
    table.mul_(0.9).add_(counts)


def main():
    rank, device = connect()
    tables_group = dist.new_group()
    torch.manual_seed(3)
    model = ClickModel().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    table = torch.zeros(32, device=device)
    torch.manual_seed(50 + rank)
    rare, history = [], []
    for step in range(STEPS):
        features, clicks, categories = read_log(rank, step, device)
        loss = nn.functional.binary_cross_entropy_with_logits(model(features), clicks)
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model)
        optimizer.step()
        rare += [c for c in categories if c >= RARE_FROM]
        if step % 25 == 24:
            history.append(loss.item())
        if step % WINDOW == WINDOW - 1:
            print(f"rank {rank} step {step} loss {history[-1]:.4f} rare rows {len(rare)}", flush=True)
            refresh(table, rare, tables_group, device)
            rare = []
    if rank == 0:
        print(f"table holds {table.sum().item():.1f}", flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
