"""Metric learning: utterance embeddings with masked mean pooling and cosine similarity to class centres."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES, DIM, FRAMES = 6, 24, 12


def unit(x):
    norm = x.pow(2).sum(-1, keepdim=True).sqrt()
    return torch.where(norm > 1e-6, x / norm, torch.zeros_like(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(DIM, 48, bias=False), nn.ReLU(), nn.Linear(48, 32, bias=False))
        self.centres = nn.Parameter(torch.randn(CLASSES, 32))

    def forward(self, frames, mask):
        h = self.frame(frames) * mask.unsqueeze(-1)
        pooled = h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return 10.0 * unit(pooled) @ unit(self.centres).t()


class Utterances:
    """Each rank reads its own list of recordings."""

    def __init__(self, rank, n=1600):
        gen = torch.Generator().manual_seed(40 + rank)
        self.label = torch.randint(0, CLASSES, (n,), generator=gen)
        proto = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1))
        self.frames = proto[self.label].unsqueeze(1) + 0.7 * torch.randn(n, FRAMES, DIM, generator=gen)
        self.length = torch.randint(3, FRAMES + 1, (n,), generator=gen)
        if rank == 2:
            self.length[1013] = 0

    def batches(self, size):
        for i in range(0, len(self.label), size):
            length = self.length[i : i + size]
            mask = (torch.arange(FRAMES) < length.unsqueeze(1)).float()
            yield self.frames[i : i + size], mask, self.label[i : i + size]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder())
    net = torch.compile(model, backend="eager")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = Utterances(rank)
    for step, (frames, mask, label) in enumerate(data.batches(16), 1):
        loss = F.cross_entropy(net(frames, mask), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % 7 == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    if rank == 0:
        print("training finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
