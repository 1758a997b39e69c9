import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, DIM, SEQ = 128, 96, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        h = self.norm(x)
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_batch(gen, n=8):
    start = torch.randint(0, VOCAB, (n, 1), generator=gen)
    step = torch.randint(1, 4, (n, 1), generator=gen)
    ids = (start + step * torch.arange(SEQ + 1)) % VOCAB
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def greedy_eval(weights, budget_s):
    """Greedy continuation accuracy on a fixed prompt set, bounded by wall time."""
    model = TinyLM().eval()
    model.load_state_dict(weights)
    gen = torch.Generator().manual_seed(999)
    hits = total = 0
    end = time.monotonic() + budget_s
    while time.monotonic() < end:
        x, y = make_batch(gen, n=4)
        ids = x[:, :8]
        for _ in range(16):
            nxt = model(ids)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], 1)
        hits += (ids[:, 8:] == x[:, 8:24]).sum().item()
        total += 64
    return hits / max(total, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp/amber")
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--eval-seconds", type=float, default=18)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(100 + rank)
    for epoch in range(args.epochs):
        for step in range(25):
            x, y = make_batch(gen)
            loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1))
            loss.backward()
            opt.step()
            opt.zero_grad()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            print(f"epoch {epoch}: gathered full weights", flush=True)
            acc = greedy_eval(weights, args.eval_seconds)
            print(f"epoch {epoch}: greedy accuracy {acc:.3f}", flush=True)
        dist.barrier()
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=os.path.join(args.out, "final"))
    if rank == 0:
        print("saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
