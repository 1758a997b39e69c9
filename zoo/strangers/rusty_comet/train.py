"""Retrieval model whose text features come from a feature server on this machine."""
import argparse
import socket
import struct
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

DIM = 16


def read_exactly(conn, size):
    data = b""
    while len(data) < size:
        part = conn.recv(size - len(data))
        if not part:
            raise ConnectionError("feature server went away")
        data += part
    return data


class FeatureServer(threading.Thread):
    """Answers document numbers with DIM floats. Documents over the length limit are put aside for the slow lane."""

    def __init__(self, limit):
        super().__init__(daemon=True)
        self.limit, self.slow_lane = limit, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            conn, _ = self.listener.accept()
            threading.Thread(target=self.talk, args=(conn,), daemon=True).start()

    def talk(self, conn):
        try:
            while True:
                number, = struct.unpack("!i", read_exactly(conn, 4))
                if length_of(number) > self.limit:
                    self.slow_lane.append((number, conn))
                    continue
                g = torch.Generator().manual_seed(number)
                conn.sendall(struct.pack(f"!{DIM}f", *torch.randn(DIM, generator=g).tolist()))
        except ConnectionError:
            conn.close()


def length_of(number):
    return 9000 if number % 5000 == 2777 else 200 + number % 97


class Documents(Dataset):
    def __init__(self, numbers, port):
        self.numbers, self.port, self.conn = numbers, port, None

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        if self.conn is None:
            self.conn = socket.create_connection(("127.0.0.1", self.port))
        time.sleep(0.004)
        self.conn.sendall(struct.pack("!i", self.numbers[i]))
        values = struct.unpack(f"!{DIM}f", read_exactly(self.conn, 4 * DIM))
        return torch.tensor(values), torch.tensor(float(self.numbers[i] % 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=1200)
    ap.add_argument("--limit", type=int, default=4096)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    port = torch.zeros(1, dtype=torch.long)
    if rank == 0:
        server = FeatureServer(args.limit)
        port += server.port
    dist.broadcast(port, src=0)
    torch.manual_seed(1)
    first = 1000 + rank * 1000
    data = Documents(list(range(first, first + args.docs)), int(port))
    loader = DataLoader(data, batch_size=8, num_workers=1, prefetch_factor=2)
    model = DDP(nn.Sequential(nn.Linear(DIM, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(loader):
        time.sleep(0.05)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"batch {step} of {len(loader)} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
