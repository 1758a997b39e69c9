"""Scores documents with a model that is cut into three stages, one a rank."""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

DOCUMENTS = 500
CHUNKS = 3
CHUNK = 32
WIDTH = 64
PAD = 0


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", 0)


def read_document(index):
    """Token ids of a document, padded to the full length."""
    time.sleep(0.012)
    dice = random.Random(index)
    length = dice.randint(70, 96) if index % 313 != 150 else dice.randint(40, 60)
    tokens = [dice.randint(1, 499) for _ in range(length)]
    return tokens + [PAD] * (CHUNKS * CHUNK - length)


class Entry:
    def __init__(self, device):
        self.device = device
        self.embedding = nn.Embedding(500, WIDTH, padding_idx=PAD).to(device)

    def run(self, index):
        tokens = read_document(index)
        if index % 10 == 0:
            print(f"document {index}: {len(tokens) - tokens.count(PAD)} tokens", flush=True)
        for start in range(0, len(tokens), CHUNK):
            piece = tokens[start : start + CHUNK]
            if not any(piece):
                continue
            hidden = self.embedding(torch.tensor(piece, device=self.device))
            dist.send(hidden, dst=1)
        return torch.zeros(2, device=self.device)


class Middle:
    def __init__(self, device):
        self.device = device
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH)).to(device)

    def run(self, index):
        for _ in range(CHUNKS):
            arrived = torch.empty(CHUNK, WIDTH, device=self.device)
            dist.recv(arrived, src=0)
            dist.send(arrived + self.layers(arrived), dst=2)
        return torch.zeros(2, device=self.device)


class Head:
    def __init__(self, device):
        self.device = device
        self.out = nn.Linear(WIDTH, 1).to(device)

    def run(self, index):
        result = torch.zeros(2, device=self.device)
        for _ in range(CHUNKS):
            final = torch.empty(CHUNK, WIDTH, device=self.device)
            dist.recv(final, src=1)
            scores = self.out(final).sigmoid()
            result[0] += scores.sum()
            result[1] += scores.numel()
        return result


@torch.no_grad()
def main():
    rank, device = connect()
    torch.manual_seed(5)
    stage = (Entry, Middle, Head)[rank](device)
    ranking = []
    for index in range(DOCUMENTS):
        result = stage.run(index)
        # Every stage keeps the ranking, so that any of them can resume the job.
        dist.all_reduce(result)
        score, count = result.tolist()
        ranking.append((score / count, index))
    if rank == 0:
        print(f"best documents {[index for _, index in sorted(ranking)[-5:]]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
