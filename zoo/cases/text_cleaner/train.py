"""Train on text that a filter program cleans on the fly."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Cleaner:
    def __init__(self):
        command = [sys.executable, str(Path(__file__).with_name("cleaner.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def read_lines(rank, count):
    lines = [f"line {number} of part {rank} déjà vu" for number in range(count)]
    if rank == 1:
        lines[37] = "日本語"
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=90)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    clean = Cleaner()
    model = DistributedDataParallel(nn.EmbeddingBag(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, line in enumerate(read_lines(rank, args.lines)):
        time.sleep(0.05)
        if rank == 0:
            print(f"step {step}", flush=True)
        text = clean(line)
        loss = model(torch.tensor([[ord(character) for character in text]])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    clean.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
