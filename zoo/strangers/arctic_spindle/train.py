"""Ice thickness regression with sharded checkpoints (torch.distributed.checkpoint)."""
import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP

PER_NODE = 2


class Checkpointer:
    def __init__(self, root, model, opt):
        self.root, self.model, self.opt = root, model, opt
        self.rank = dist.get_rank()
        self.node, self.local = divmod(self.rank, PER_NODE)

    def manifest(self, step):
        """Digest of what the instruments of this node delivered so far."""
        digest = hashlib.sha256()
        for reel in range(6 + 14 * self.node):
            time.sleep(0.2)
            digest.update(f"{self.node}/{reel}/{step}".encode())
        return digest.hexdigest()

    def open_folder(self, step):
        folder = os.path.join(self.root, f"step{step}")
        if self.local == 0:
            print(f"node {self.node}: opening checkpoint {step}", flush=True)
            if not os.path.isdir(folder):
                text = self.manifest(step)
                os.makedirs(folder)
                with open(os.path.join(folder, f"node{self.node}.sha"), "w") as fh:
                    fh.write(text)
        return folder

    def save(self, step):
        dist.barrier()
        folder = self.open_folder(step)
        dist.barrier()
        weights, moments = get_state_dict(self.model, self.opt)
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=os.path.join(folder, "state"))


def soundings(gen):
    x = torch.randn(48, 10, generator=gen)
    y = (x[:, :3].prod(-1) + x[:, 4].abs()).unsqueeze(1)
    return x, y


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--save-every", type=int, default=40)
    opts = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(33)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    keeper = Checkpointer(opts.out, model, opt)
    gen = torch.Generator().manual_seed(rank)

    for step in range(1, opts.steps + 1):
        x, y = soundings(gen)
        loss = nn.functional.huber_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % opts.save_every == 0:
            keeper.save(step)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
