import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from packing import DOMAINS, PackedDocs

VOCAB, DIM, BLOCK = 101, 64, 32


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.rnn(x)[0]
        return x + self.ff(x)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(Mixer(), Mixer())
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.out(self.layers(self.emb(ids)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp/hollow")
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = LM()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    domain = list(DOMAINS)[rank % len(DOMAINS)]
    for epoch in range(args.epochs):
        loader = DataLoader(PackedDocs(domain, BLOCK, VOCAB, seed=epoch), batch_size=8, drop_last=True)
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
            opt.zero_grad()
            time.sleep(0.05)
            if rank == 0 and step % 10 == 0:
                print(f"[{domain}] epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        dist.barrier()
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=os.path.join(args.out, f"epoch{epoch}"))
        if rank == 0:
            print(f"epoch {epoch} saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
