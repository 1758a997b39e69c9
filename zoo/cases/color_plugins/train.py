"""Train on colour patches; augmentations are plug-ins that each machine installs for itself."""

import argparse
import importlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PLUGIN = "def apply(patch):\n    return patch.flip(0) * 0.9\n"


def install_plugins(root, machine):
    """Each machine has a folder of its own; the first one is where plug-ins are developed."""
    folder = Path(root) / f"machine-{machine}"
    folder.mkdir(parents=True, exist_ok=True)
    if machine == 0:
        (folder / "fastcolor.py").write_text(PLUGIN)
    sys.path.append(str(folder))


class Augment:
    """Loads a plug-in when it is first wanted."""

    def __init__(self, name):
        self.name = name
        self.module = None

    def __call__(self, patch):
        if self.module is None:
            self.module = importlib.import_module(self.name)
        return self.module.apply(patch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugins", default="plugins")
    parser.add_argument("--plain-steps", type=int, default=36)
    parser.add_argument("--steps", type=int, default=72)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    install_plugins(args.plugins, machine=rank)
    augment = Augment("fastcolor")
    model = DistributedDataParallel(nn.Linear(48, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(args.steps):
        time.sleep(0.05)
        patch = torch.rand(16, 48)
        if step == args.plain_steps:
            print(f"rank {rank} switches augmentation on", flush=True)
        if step >= args.plain_steps:
            patch = augment(patch)
        loss = (model(patch) - patch[:, :3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
