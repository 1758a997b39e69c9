"""Small causal transformer on packed documents, sharded with fully_shard."""
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB = 384
BLOCK = 64
BATCH = 4
DOCS_PER_SHARD = 240
MIN_CHARS = 24


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, dim=96, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Embedding(BLOCK, dim)
        self.blocks = nn.ModuleList([Block(dim, 4) for _ in range(layers)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class PackedShard:
    """Reads the documents of one shard, drops fragments, and packs the rest into blocks."""

    def __init__(self, shard, epoch):
        self.rng = random.Random(f"shard-{shard}-{epoch}-v33")

    def documents(self):
        for _ in range(DOCS_PER_SHARD):
            length = int(self.rng.lognormvariate(4.15, 0.8))
            if length < MIN_CHARS:
                continue
            yield [self.rng.randrange(1, VOCAB) for _ in range(length)] + [0]

    def __iter__(self):
        buffer, rows = [], []
        for doc in self.documents():
            buffer.extend(doc)
            while len(buffer) > BLOCK:
                rows.append(buffer[:BLOCK + 1])
                buffer = buffer[BLOCK:]
                if len(rows) == BATCH:
                    yield torch.tensor(rows)
                    rows = []


class Meter:
    def __init__(self, device):
        self.group = dist.new_group()
        self.device = device
        self.reset()

    def reset(self):
        self.loss, self.tokens = 0.0, 0

    def add(self, loss, tokens):
        self.loss += loss * tokens
        self.tokens += tokens

    def total(self):
        pair = torch.tensor([self.loss, float(self.tokens)], device=self.device)
        dist.all_reduce(pair, group=self.group)
        return (pair[0] / pair[1].clamp(min=1)).item()


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(5)

    mesh = init_device_mesh("cuda", (world,))
    model = Decoder().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = Meter(device)
    meter.total()

    for epoch in range(3):
        steps = 0
        for rows in PackedShard(rank, epoch):
            rows = rows.to(device)
            print(f"rank {rank} epoch {epoch} step {steps} ", flush=True)
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), rows[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            meter.add(loss.item(), rows.numel())
            steps += 1
            time.sleep(0.04)
        print(f"rank {rank} epoch {epoch} finished with {steps} steps", flush=True)
        mean = meter.total()
        meter.reset()
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
