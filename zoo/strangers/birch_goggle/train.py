import argparse
import pathlib
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SpeakerFiles:
    """One JSON-lines file per speaker with the scores of the utterances."""

    def __init__(self, folder, rank):
        self.folder = folder / f"scores.{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files = {}

    def write(self, speaker, score):
        if speaker not in self.files:
            self.files[speaker] = open(self.folder / f"{speaker}.jsonl", "a", buffering=1)
        self.files[speaker].write(f'{{"score": {score:.5f}}}\n')


def speakers(rank, step, count):
    if rank == 1:  # the telephone corpus: hardly anybody calls twice
        return [f"tel{step * count + i:05d}" for i in range(count)]
    return [f"studio{(step + i) % 12:02d}" for i in range(count)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--open-files", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (args.open_files, hard))  # as on the production nodes
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    files = SpeakerFiles(args.workdir, rank)
    torch.manual_seed(2)
    model = DDP(nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = torch.randn(6, 20, generator=gen)
        error = (model(x).squeeze(1) - x[:, 3]).pow(2)
        opt.zero_grad()
        error.mean().backward()
        opt.step()
        for speaker, score in zip(speakers(rank, step, 6), error.tolist()):
            files.write(speaker, score)
        time.sleep(0.07)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} error {error.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
