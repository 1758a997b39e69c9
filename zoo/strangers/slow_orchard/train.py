import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class BackgroundSaver:
    """Writes snapshots from a few threads so that the training loop does not wait for the disk."""

    def __init__(self, folder, threads=2):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.jobs = queue.Queue()
        self.threads = [threading.Thread(target=self._write, name=f"saver-{i}") for i in range(threads)]
        for t in self.threads:
            t.start()

    def _write(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            name, state = job
            torch.save(state, os.path.join(self.folder, name))

    def submit(self, name, model):
        state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.jobs.put((name, state))

    def close(self):
        self.jobs.put(None)


def main():
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    saver = BackgroundSaver(folder) if rank == 0 else None

    for step in range(1, 81):
        x = torch.randn(16, 10, generator=gen)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.04)
        if saver and step % 20 == 0:
            saver.submit(f"snap{step}.pt", model.module)
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()
    if saver:
        saver.close()
        print("training complete", flush=True)


if __name__ == "__main__":
    main()
