"""The jobs of chaos: small ones that cost little to start, so that there can be many rounds.

All three train in step, with a process of their own that brings the data. What they differ in is what a round costs
(most of it is the import of torch in each rank): the sockets job imports no torch, and shows what the launcher, its
guard and warden do; the others add torch's process groups, loaders and what the probe hooks into.
"""

from __future__ import annotations

SHARES = {"sockets": 5, "gloo": 2, "ddp": 1}
"""How often each is chosen."""

_DDP = """
import sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, at): return torch.ones(8)

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = iter(DataLoader(Rows(), batch_size=4, num_workers=1))
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(next(loader)).sum().backward()
        optimizer.step()
        print("step", step, flush=True)
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

_GLOO = """
import sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, at): return torch.ones(8)

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loader = iter(DataLoader(Rows(), batch_size=4, num_workers=1))
    for step in range(int(sys.argv[1])):
        dist.all_reduce(next(loader))
        print("step", step, flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

_SOCKETS = """
import multiprocessing, os, socket, sys, time

PORT = int(os.environ["CHAOS_PORT"])

def rows(pipe):
    while True:
        pipe.send(b"row")

def peer(rank):
    if rank == 0:
        with socket.create_server((os.environ["CHAOS_ADDRESS"], PORT)) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection((os.environ["CHAOS_ADDRESS"], PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)

def main():
    rank = int(os.environ["RANK"])
    other = peer(rank)
    receive, send = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=rows, args=(send,), daemon=True)
    worker.start()
    send.close()
    for step in range(int(sys.argv[1])):
        other.sendall(receive.recv())
        if len(other.recv(3, socket.MSG_WAITALL)) < 3:
            raise ConnectionError(f"rank {1 - rank} has closed its connection")
        print("step", step, flush=True)
        time.sleep(0.05)

if __name__ == "__main__":
    main()
"""

PROGRAMS = {"ddp": _DDP, "gloo": _GLOO, "sockets": _SOCKETS}
