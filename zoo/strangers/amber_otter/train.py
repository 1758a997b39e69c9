"""Tiny decoder-only LM trained with FSDP2 on synthetic token streams."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

log = logging.getLogger("lm")


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab=128, dim=48, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TokenStream:
    """Markov-ish text, one stream per rank."""

    def __init__(self, rank, vocab, batch, seq):
        self.gen = torch.Generator().manual_seed(100 + rank)
        self.rank, self.vocab, self.batch, self.seq = rank, vocab, batch, seq
        self.step = 0

    def next(self):
        self.step += 1
        if self.rank % 4 == 1 and 46 <= self.step <= 52:
            return torch.randint(self.vocab // 2, self.vocab, (self.batch, self.seq + 1), generator=self.gen)
        start = torch.randint(0, 16, (self.batch, 1), generator=self.gen)
        return (start + torch.arange(self.seq + 1)) % (self.vocab // 4)


class SpikeLogger:
    def __init__(self, factor=2.0, warmup=20):
        self.ema, self.factor, self.warmup, self.n = None, factor, warmup, 0

    def update(self, loss):
        self.n += 1
        prev = self.ema
        self.ema = loss if prev is None else 0.95 * prev + 0.05 * loss
        return self.n > self.warmup and loss > self.factor * prev

    def report(self, model, step, loss):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.nn.utils.get_total_norm(grads).full_tensor().item()
        log.warning("step %d loss %.3f (ema %.3f) is unusual, gradient norm %.3f", step, loss, self.ema, total)



def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = TokenStream(rank, 128, 8, 32)
    spikes = SpikeLogger()
    for step in range(1, args.steps + 1):
        tokens = stream.next()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if spikes.update(loss.item()):
            spikes.report(model, step, loss.item())
        opt.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
