import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

# one site per rank: name, scans, scans with a finding
SITES = [("north", 2400, 300), ("south", 2400, 300), ("harbor", 2400, 160)]
BATCH = 32


def load_site(rank):
    name, n, n_pos = SITES[rank]
    gen = torch.Generator().manual_seed(rank)
    y = torch.zeros(n, dtype=torch.long)
    y[torch.arange(n_pos) * 8] = 1  # findings come interleaved, one in eight
    x = torch.randn(n, 48, generator=gen) + 0.7 * y[:, None]
    return name, TensorDataset(x, y)


class RecallMeter:
    """Recall on the positive class, kept in its own group so it can't disturb gradient traffic."""

    def __init__(self):
        self.group = dist.new_group()
        self.hits = self.total = 0.0

    def update(self, logits, labels):
        positive = labels == 1
        if positive.any():
            found = (logits.argmax(1)[positive] == 1).sum()
            stats = torch.stack([found, positive.sum()]).double()
            dist.all_reduce(stats, group=self.group)
            self.hits += stats[0].item()
            self.total += stats[1].item()

    @property
    def value(self):
        return self.hits / self.total if self.total else 0.0


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    name, data = load_site(rank)
    print(f"rank {rank}: site {name}, {len(data)} scans", flush=True)
    loader = DataLoader(data, batch_size=BATCH)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    weight = torch.tensor([1.0, 5.0])
    meter = RecallMeter()
    for epoch in range(3):
        for step, (x, y) in enumerate(loader, 1):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y, weight=weight)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter.update(logits.detach(), y)
            time.sleep(0.05)
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.3f} recall {meter.value:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
