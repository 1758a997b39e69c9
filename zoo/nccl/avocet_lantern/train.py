"""Seismic phase picker, hybrid-sharded over a 2-D mesh; waveforms are unpacked ahead of time in threads."""
import os
import random
import struct
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SAMPLES = 200
BATCH = 8
STEPS = 160
HEADER = struct.Struct("<4sHH")


class Archive:
    """Binary records of one network of stations, as the field loggers wrote them."""

    def __init__(self, network, seed):
        self.rng = random.Random(f"network-{seed}-{network}")

    def record(self):
        rng = self.rng
        pick = rng.randrange(20, SAMPLES - 20)
        wave = [int(rng.gauss(0, 20 if i < pick else 400)) for i in range(SAMPLES)]
        raw = HEADER.pack(b"SEIS", SAMPLES, pick) + struct.pack(f"<{SAMPLES}i", *wave)
        if rng.random() < 0.0005:
            raw = raw[:HEADER.size + 4 * rng.randrange(SAMPLES)]
        return raw

    def read(self):
        return [self.record() for _ in range(BATCH)]


def unpack(raw):
    magic, samples, pick = HEADER.unpack_from(raw)
    wave = struct.unpack_from(f"<{samples}i", raw, HEADER.size)
    return torch.tensor(wave, dtype=torch.float32), pick


def collate(records):
    waves, picks = zip(*(unpack(raw) for raw in records))
    waves = torch.stack(waves)
    return waves / waves.abs().amax(dim=1, keepdim=True).clamp(min=1.0), torch.tensor(picks)


class Prefetcher:
    def __init__(self, archive, depth=4):
        self.archive = archive
        self.pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="unpack")
        self.queue = deque()
        for _ in range(depth):
            self.submit()

    def submit(self):
        self.queue.append(self.pool.submit(collate, self.archive.read()))

    def __next__(self):
        self.submit()
        return self.queue.popleft().result()

    def close(self):
        self.pool.shutdown(cancel_futures=True)


class Picker(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Conv1d(1, width, 7, padding=3)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.GELU(), nn.Conv1d(width, width, 5, padding=2))
            for _ in range(2)])
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = self.inp(x.unsqueeze(1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(1)


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(17)

    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    model = Picker().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Prefetcher(Archive(rank, seed=57))

    for step in range(STEPS):
        print(f"rank {rank} step {step} ", flush=True)
        waves, picks = next(batches)
        loss = F.cross_entropy(model(waves.to(device)), picks.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if rank == 0 and step % 20 == 0:
            print(f"pick loss {value:.4f}", flush=True)
        time.sleep(0.04)

    batches.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
