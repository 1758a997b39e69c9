import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from augment import Spectrograms


def init_worker(worker_id):
    torch.set_num_threads(1)


def build_loader(batch_size=16):
    data = Spectrograms()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return sampler, DataLoader(
        data, batch_size=batch_size, sampler=sampler, num_workers=2,
        worker_init_fn=init_worker, persistent_workers=True, prefetch_factor=2,
    )


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(nn.Sequential(
        nn.Conv1d(33, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(64, 8),
    ))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler, loader = build_loader()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        correct = seen = 0
        for step, (spec, label) in enumerate(loader):
            out = model(spec)
            loss = nn.functional.cross_entropy(out, label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == label).sum().item()
            seen += len(label)
            time.sleep(0.1)
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} acc {correct / seen:.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
