"""Language model with hash-routed experts; dense and expert gradients travel in their own groups."""
import os
import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 512
TOKENS = 192
STEPS = 170
EXPERT_SLOTS = {1, 6}


class Corpus:
    """Token stream that mixes prose and markup; one independent stream per rank."""

    def __init__(self, shard, seed):
        self.rng = random.Random(f"corpus-{seed}-{shard}")

    def draw(self):
        rng = self.rng
        markup = min(0.9, 0.05 * rng.paretovariate(2.2))
        return [rng.randrange(VOCAB) // 8 * 8 + (1 if rng.random() < markup else rng.choice((0, 2, 3, 4, 5, 6, 7)))
                for _ in range(TOKENS + 1)]


class HashExperts(nn.Module):
    """Tokens whose hash falls on an expert slot take the wide branch, the others the narrow one."""

    def __init__(self, dim):
        super().__init__()
        self.narrow = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.wide = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, routed):
        out = self.narrow(x)
        return x + torch.where(routed.unsqueeze(-1), self.wide(x), out)


class Model(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList([HashExperts(dim) for _ in range(2)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens, routed):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, routed)
        return self.head(x)


@dataclass
class Bucket:
    params: list
    group: object
    rows: int = 0


class TwoGroupReducer:
    """Keeps a bucket of gradients for each group and reduces the busiest one first."""

    def __init__(self, model):
        expert = [p for n, p in model.named_parameters() if ".wide." in n]
        dense = [p for n, p in model.named_parameters() if ".wide." not in n]
        self.buckets = {"dense": Bucket(dense, dist.new_group()), "expert": Bucket(expert, dist.new_group())}

    def count(self, routed):
        self.buckets["expert"].rows = sum(routed)
        self.buckets["dense"].rows = len(routed) - sum(routed)

    def reduce_bucket(self, bucket):
        rows = torch.tensor([float(bucket.rows)], device=bucket.params[0].device)
        flat = torch.cat([p.grad.reshape(-1) for p in bucket.params] + [rows])
        dist.all_reduce(flat, group=bucket.group)
        total = flat[-1].item()
        at = 0
        for p in bucket.params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p) / dist.get_world_size())
            at += p.numel()
        return total

    def flush(self):
        totals = {}
        for name in sorted(self.buckets, key=lambda n: self.buckets[n].rows, reverse=True):
            totals[name] = self.reduce_bucket(self.buckets[name])
        return totals


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(21)

    model = Model().to(device)
    reducer = TwoGroupReducer(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    corpus = Corpus(rank, seed=83)

    for step in range(STEPS):
        tokens = corpus.draw()
        routed = [t % 8 in EXPERT_SLOTS for t in tokens[:-1]]
        inputs = torch.tensor(tokens, device=device)
        print(f"rank {rank} step {step} routed {sum(routed)}", flush=True)
        optimizer.zero_grad()
        logits = model(inputs[:-1], torch.tensor(routed, device=device))
        loss = F.cross_entropy(logits, inputs[1:])
        loss.backward()
        reducer.count(routed)
        totals = reducer.flush()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"loss {loss.item():.3f} rows {totals}", flush=True)
        time.sleep(0.05)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
