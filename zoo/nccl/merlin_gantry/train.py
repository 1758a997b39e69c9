"""Linear autoencoder for vibration spectra of a machine park; gradients travel in half precision."""
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn

BINS = 256
BATCH = 64
STEPS = 140
HALF_MIN = torch.finfo(torch.float16).smallest_normal


class Recorder:
    """Plays back the recordings of one machine; each recording has its own sensor gain."""

    def __init__(self, machine, seed):
        rng = random.Random(f"machine-{seed}-{machine}")
        self.gen = torch.Generator().manual_seed(40 + machine)
        self.modes = torch.randn(12, BINS, generator=self.gen) / 4
        self.plan = []
        while len(self.plan) < STEPS:
            gain = 1.0 if rng.random() < 0.85 else 2e-3
            self.plan += [gain] * rng.randint(20, 70)

    def spectrum(self, step):
        weights = torch.randn(BATCH, 12, generator=self.gen)
        noise = 0.05 * torch.randn(BATCH, BINS, generator=self.gen)
        return self.plan[step] * (weights @ self.modes + noise)


class AutoEncoder(nn.Module):
    def __init__(self, code=24):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(BINS, 128, bias=False), nn.Linear(128, code, bias=False))
        self.up = nn.Sequential(nn.Linear(code, 128, bias=False), nn.Linear(128, BINS, bias=False))

    def forward(self, x):
        return self.up(self.down(x))


class HalfPrecisionReducer:
    """Averages gradients in 16 bits, two handles in flight; picks the format that suits the gradients."""

    def __init__(self, model, flush_limit=0.5):
        self.halves = [list(model.up.parameters()), list(model.down.parameters())]
        self.flush_limit = flush_limit
        self.wire = torch.float16
        self.world = dist.get_world_size()

    def flushed_share(self, flats):
        small = sum(int((f.abs() < HALF_MIN).sum()) for f in flats)
        return small / sum(f.numel() for f in flats)

    def choose_format(self, flats):
        if self.wire is torch.float16 and self.flushed_share(flats) > self.flush_limit:
            self.wire = torch.bfloat16

    def __call__(self):
        flats = [torch.cat([p.grad.reshape(-1) for p in half]) for half in self.halves]
        self.choose_format(flats)
        pending = []
        for flat in flats:
            packed = (flat / self.world).to(self.wire)
            pending.append((packed, dist.all_reduce(packed, async_op=True)))
        for half, (packed, handle) in zip(self.halves, pending):
            handle.wait()
            at = 0
            for p in half:
                p.grad.copy_(packed[at:at + p.numel()].view_as(p))
                at += p.numel()


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(9)

    model = AutoEncoder().to(device)
    reduce_gradients = HalfPrecisionReducer(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    recorder = Recorder(rank, seed=159)
    curve = []

    for step in range(STEPS):
        x = recorder.spectrum(step).to(device)
        print(f"rank {rank} step {step} gain {recorder.plan[step]}", flush=True)
        loss = (model(x) - x).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"reconstruction {curve[-1]:.4f}", flush=True)
        time.sleep(0.06)

    dist.barrier()
    print(f"rank {rank} done, last loss {curve[-1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
