"""Train a captioner; rank 0 scores it with an external program after each round."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def score(folder, model):
    """The scorer is a program of its own: it needs another version of its libraries."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "references").exists():
        os.mkfifo(folder / "references")
    tokens = model(torch.eye(8)).argmax(dim=1).tolist()
    (folder / "captions.txt").write_text("\n".join(str(token) for token in tokens))
    command = [sys.executable, str(Path(__file__).with_name("scorer.py")), str(folder)]
    print(f"scoring {len(tokens)} captions", flush=True)
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="scores")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(args.rounds):
        for _ in range(36):
            time.sleep(0.05)
            loss = (model(torch.eye(8)) - torch.eye(8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"round {number} score {score(args.folder, model.module):.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
