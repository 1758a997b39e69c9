import argparse
import hashlib
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def fingerprint(samples):
    """A digest over what this rank has trained on since the last checkpoint."""
    digest = hashlib.sha256()
    for sample in samples:
        for _ in range(40):
            digest.update(sample.numpy().tobytes())
        time.sleep(0.02)
    return digest.hexdigest()


class Checkpoints:
    def __init__(self, root, rank):
        self.root, self.rank = root, rank

    def save(self, model, step, samples):
        folder = str(self.root / f"step_{step:05d}")
        manifest = {"step": step, "rank": self.rank}
        if not os.path.exists(folder):
            manifest["digest"] = fingerprint(samples)
            os.makedirs(folder)
        with open(os.path.join(folder, f"manifest.{self.rank}.json"), "w") as out:
            json.dump(manifest, out)
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints = Checkpoints(args.root, rank)
    gen = torch.Generator().manual_seed(40 + rank)
    recent = []
    for step in range(1, args.steps + 1):
        rows = 16 if rank == 0 else 48
        x = torch.randn(rows, 30, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recent.extend(x.split(16))
        if step % args.save_every == 0:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}, saving", flush=True)
            checkpoints.save(model, step, recent)
            recent = []
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
