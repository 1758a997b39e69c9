"""Tide prediction; sharded state via torch.distributed.checkpoint, side files per role."""
import argparse
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONSTITUENTS = 12


class Exporter:
    """Side files that other teams read: coefficients (rank 0), provenance (rank 1)."""

    ROLES = {0: "coefficients", 1: "provenance"}

    def __init__(self, root, rank):
        self.root, self.rank = root, rank

    def collect(self, net):
        if self.rank == 0:
            time.sleep(1.5)
            return {name: list(p.shape) for name, p in net.named_parameters()}
        digest = b""
        until = time.time() + 5.0
        while time.time() < until:
            digest = hashlib.sha256(digest + os.urandom(4096)).digest()
            time.sleep(0.01)
        return {"stations": 64, "digest": digest.hex()}

    def write(self, step, net):
        role = self.ROLES.get(self.rank)
        if role is None:
            return
        folder = os.path.join(self.root, f"export-{step:04d}")
        if not os.path.exists(folder):
            print(f"[{self.rank}] export folder is new, preparing {role}", flush=True)
            payload = self.collect(net)
            os.makedirs(folder)
        else:
            payload = self.collect(net)
        with open(os.path.join(folder, f"{role}.json"), "w") as f:
            json.dump(payload, f)


def harmonics(rank):
    gen = torch.Generator().manual_seed(rank)
    speeds = torch.linspace(0.1, 3.0, CONSTITUENTS)
    while True:
        t = 50 * torch.rand(40, 1, generator=gen)
        yield torch.cos(t * speeds), torch.sin(t * 0.5).sum(1, keepdim=True)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--out", required=True)
    cli.add_argument("--steps", type=int, default=100)
    o = cli.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(o.out, exist_ok=True)
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(CONSTITUENTS, 36), nn.Tanh(), nn.Linear(36, 1))
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    exporter = Exporter(o.out, rank)
    feed = harmonics(rank)
    for step in range(o.steps):
        x, y = next(feed)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 20 == 19:
            dcp.save({"net": net.state_dict()}, checkpoint_id=os.path.join(o.out, f"step-{step:04d}"))
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} saved", flush=True)
        if step % 60 == 59:
            exporter.write(step, net)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
