from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
EOS = len(ALPHABET)


@dataclass
class Config:
    dim: int = 32
    layers: int = 2
    heads: int = 2
    lr: float = 2e-3
    families: int = 330
    blocks_per_epoch: int = 60
    contexts: list[int] = field(default_factory=lambda: [32, 32, 96, 96])
    seed: int = 5


class Shard:
    """Protein families are dealt to the ranks round robin; a family is never split."""

    def __init__(self, cfg: Config, rank: int, world: int):
        rng = random.Random(cfg.seed)
        self.sequences = []
        for family in range(cfg.families):
            length = rng.randint(20, 45) if family % 3 == 1 else rng.randint(55, 110)
            seq = [rng.randrange(len(ALPHABET)) for _ in range(length)]
            if family % world == rank:
                self.sequences.append(seq)

    def blocks(self, context: int, epoch: int):
        order = list(range(len(self.sequences)))
        random.Random(epoch).shuffle(order)
        buffer: list[int] = []
        for i in order:
            buffer += self.sequences[i] + [EOS]
            while len(buffer) > context:
                yield torch.tensor(buffer[: context + 1])
                buffer = buffer[context:]


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class ProteinLM(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.embed = nn.Embedding(EOS + 1, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg.dim, cfg.heads) for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, EOS + 1)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def run_epoch(model, opt, shard: Shard, cfg: Config, epoch: int, context: int):
    tally = torch.zeros(2)
    for step, block in enumerate(islice(shard.blocks(context, epoch), cfg.blocks_per_epoch)):
        time.sleep(0.01)
        logits = model(block[None, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), block[1:])
        loss.backward()
        opt.step()
        opt.zero_grad()
        tally += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(tally)
    return (tally[0] / tally[1]).item(), int(tally[1])


def main():
    cfg = Config()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))

    model = ProteinLM(cfg)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    shard = Shard(cfg, rank, world)
    print(f"rank {rank}: {len(shard.sequences)} sequences, pid {os.getpid()}", flush=True)

    for epoch, context in enumerate(cfg.contexts):
        if rank == 0:
            print(f"epoch {epoch}: context {context}", flush=True)
        mean, steps = run_epoch(model, opt, shard, cfg, epoch, context)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.3f} over {steps} blocks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
