"""Ticket classifier: support messages are cleaned by an external normaliser process before hashing."""
import os
import random
import subprocess
import sys
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

NORMALISER = r"""
import re, sys
for line in sys.stdin:
    text = re.sub(r"[^a-z0-9 ]+", " ", line.lower())
    text = " ".join(text.split())
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
"""
PHRASES = ["cannot log in", "invoice is wrong", "app crashes on start", "please cancel", "refund not received",
           "where is my parcel", "password reset mail", "double charge", "screen stays black", "change address"]
GREETINGS = ["Hi!", "Hello,", "Dear team,", ""]
SIGNS = ["Thanks!", "-- sent from my phone", "", "???", ":-)"]
BUCKETS = 4096
BATCH = 16
STEPS = 180


class Normaliser:
    """Line protocol: one message in, one cleaned message out."""

    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, "-u", "-c", NORMALISER], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, bufsize=1)

    def clean(self, message):
        self.proc.stdin.write(message.replace("\n", " ") + "\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline().rstrip("\n")

    def close(self):
        self.proc.stdin.close()
        self.proc.wait(timeout=5)


class Tickets:
    def __init__(self, shard, seed):
        self.rng = random.Random(f"tickets-{seed}-{shard}")

    def message(self):
        rng = self.rng
        label = rng.randrange(len(PHRASES))
        body = PHRASES[label]
        if rng.random() < 0.004:
            body = rng.choice(("...", "?!", "(y)", "+1"))
        return f"{rng.choice(GREETINGS)} {body} {rng.choice(SIGNS)}", label

    def batch(self):
        return [self.message() for _ in range(BATCH)]


class HashedBag:
    def __init__(self, normaliser, device):
        self.normaliser, self.device = normaliser, device

    def __call__(self, tickets):
        ids, offsets = [], []
        for message, _ in tickets:
            offsets.append(len(ids))
            words = self.normaliser.clean(message).split()
            ids.extend(zlib.crc32(w.encode()) % BUCKETS for w in words)
        labels = torch.tensor([label for _, label in tickets], device=self.device)
        return torch.tensor(ids, device=self.device), torch.tensor(offsets, device=self.device), labels


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 64)
        self.body = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, len(PHRASES)))

    def forward(self, ids, offsets):
        return self.body(self.bag(ids, offsets))


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)

    normaliser = Normaliser()
    collate = HashedBag(normaliser, device)
    tickets = Tickets(rank, seed=32)
    model = DistributedDataParallel(Classifier().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    history = []
    seen = torch.zeros(1, device=device)
    for step in range(STEPS):
        print(f"rank {rank} step {step} messages {step * BATCH}", flush=True)
        ids, offsets, labels = collate(tickets.batch())
        loss = F.cross_entropy(model(ids, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.fill_(float(len(labels)))
        dist.all_reduce(seen)
        history.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"loss {sum(history[-20:]) / len(history[-20:]):.4f} batch {int(seen.item())}", flush=True)
        time.sleep(0.05)

    normaliser.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
