"""Classifies traffic recordings with DDP; a thread reads ahead and hands over ready batches."""

import argparse
import os
import queue
import random
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LABELS = {"car": 0, "truck": 1, "bicycle": 2, "bus": 3, "pedestrian": 4}
SHARES = {"car": 520, "truck": 210, "bicycle": 140, "bus": 70, "pedestrian": 59.9, "tram": 0.1}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=3, help="batches that are read ahead")
    parser.add_argument("--seed", type=int, default=221)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), device


class Recordings:
    def __init__(self, args, rank):
        self.args = args
        self.rng = random.Random(args.seed * 10 + rank)
        self.kinds, self.shares = list(SHARES), list(SHARES.values())

    def record(self):
        kind = self.rng.choices(self.kinds, self.shares)[0]
        return {"kind": kind, "signal": [self.rng.gauss(len(kind), 1.0) for _ in range(20)]}

    def collate(self, records):
        signals = torch.tensor([record["signal"] for record in records])
        labels = torch.tensor([LABELS[record["kind"]] for record in records])
        return signals, labels

    def __iter__(self):
        for _ in range(self.args.batches):
            yield self.collate([self.record() for _ in range(self.args.batch)])


class Prefetcher:
    """Iterates in a thread of its own, at most `ahead` batches before the consumer."""

    END = object()

    def __init__(self, source, ahead):
        self.source, self.ready = source, queue.Queue(maxsize=ahead)
        self.thread = threading.Thread(target=self.read, name="prefetch", daemon=True)
        self.thread.start()

    def read(self):
        try:
            for item in self.source:
                self.ready.put(item)
            self.ready.put(self.END)
        except Exception as error:
            self.ready.put(error)

    def __iter__(self):
        while True:
            item = self.ready.get()
            if item is self.END:
                return
            if isinstance(item, Exception):
                raise item
            yield item


def train(args, rank, device):
    torch.manual_seed(12)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, len(LABELS))).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    right = seen = 0
    for index, (signals, labels) in enumerate(Prefetcher(Recordings(args, rank), args.ahead)):
        if index % 5 == 0:
            print(f"rank {rank} batch {index:03d} accuracy {right / max(seen, 1):.3f}", flush=True)
        signals, labels = signals.to(device), labels.to(device)
        logits = model(signals)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
        time.sleep(0.04)
    return right / seen


def main():
    args = parse_args()
    rank, device = setup()
    started = time.monotonic()
    try:
        accuracy = train(args, rank, device)
        print(f"rank {rank} finished with accuracy {accuracy:.3f}", flush=True)
    finally:
        print(f"rank {rank} ran for {time.monotonic() - started:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
