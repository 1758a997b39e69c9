"""Protein strings with a small encoder, sharded by fully_shard."""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REPORT_EVERY = 40
AMINO, LENGTH, DIM = 24, 32, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.emb = nn.Embedding(AMINO, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(DIM, AMINO)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Session:
    def __init__(self):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.rank = dist.get_rank()
        torch.manual_seed(4)
        self.model = Encoder()
        for block in self.model.blocks:
            fully_shard(block, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.gen = torch.Generator().manual_seed(self.rank)

    @property
    def head_norm(self):
        return self.model.head.weight.norm().full_tensor().item()

    def report(self, step, loss):
        print(f"report at step {step}", file=sys.stderr, flush=True)
        line = f"loss {loss.item():.4f} |w| {self.head_norm:.4f}"
        print(f"  {line}", file=sys.stderr, flush=True)

    def masked_batch(self):
        ids = torch.randint(1, AMINO, (8, LENGTH), generator=self.gen)
        hide = torch.rand(ids.shape, generator=self.gen) < 0.2
        return ids.masked_fill(hide, 0), ids, hide

    def run(self, steps):
        for step in range(1, steps + 1):
            shown, truth, hide = self.masked_batch()
            logits = self.model(shown)
            loss = nn.functional.cross_entropy(logits[hide], truth[hide])
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            if step % 10 == 0:
                print(f"[{self.rank}] {step} local loss {loss.item():.4f}", file=sys.stderr, flush=True)
            if self.rank == 0 and step % REPORT_EVERY == 0:
                self.report(step, loss)
            time.sleep(0.03)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Session().run(steps=160)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
