"""Fine-tune a small sharded encoder on decoded recordings, with the decoded ones kept in memory."""

import os
import random
import threading
import time
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FEATURES = 64
RECORDINGS = 360
CACHE_FRAMES = 5200
STEPS = 200
PAUSE = 0.06


def manifest() -> list[tuple[int, int]]:
    """Name and frames of every recording, shortest first."""
    dice = random.Random(17)
    return sorted(((name, dice.randint(24, 140)) for name in range(RECORDINGS)), key=lambda entry: entry[1])


class DecodedCache:
    """Decoded recordings by name, the oldest first. The meter thread reads it too."""

    def __init__(self, limit: int):
        self.limit, self.frames = limit, 0
        self.entries: OrderedDict[int, torch.Tensor] = OrderedDict()
        self.lock = threading.Lock()

    def fetch(self, name: int, frames: int) -> torch.Tensor:
        with self.lock:
            if name not in self.entries:
                generator = torch.Generator().manual_seed(name)
                self.entries[name] = torch.randn(frames, FEATURES, generator=generator)
                self.frames += frames
                if self.frames > self.limit:
                    self.trim()
            return self.entries[name]

    def trim(self) -> None:
        """Drop the oldest recordings until a fifth of the room is free."""
        self.lock.acquire()
        try:
            while self.frames > self.limit * 0.8:
                _, oldest = self.entries.popitem(last=False)
                self.frames -= len(oldest)
        finally:
            self.lock.release()

    def usage(self) -> float:
        with self.lock:
            return self.frames / self.limit


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 192), nn.GELU(), nn.Linear(192, FEATURES))
            for _ in range(2)
        )
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            frames = frames + block(frames)
        return self.head(frames).mean()


def meter(cache: DecodedCache, gauge: dict[str, float]) -> None:
    while True:
        gauge["usage"] = cache.usage()
        time.sleep(0.5)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh(device.type, (world,))

    torch.manual_seed(2)
    model = Encoder().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    per_rank = RECORDINGS // world
    shard = manifest()[rank * per_rank : (rank + 1) * per_rank]
    random.Random(rank).shuffle(shard)
    cache, gauge = DecodedCache(CACHE_FRAMES), {"usage": 0.0}
    threading.Thread(target=meter, args=(cache, gauge), daemon=True).start()

    for step in range(STEPS):
        name, frames = shard[step % len(shard)]
        inputs = cache.fetch(name, frames).to(device)
        loss = (model(inputs) - 1.0).square()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            print(f"rank {rank} step {step} loss {loss.item():.4f} cache {gauge['usage']:.0%}", flush=True)
        time.sleep(PAUSE)

    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
