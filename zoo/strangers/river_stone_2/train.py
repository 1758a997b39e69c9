import argparse
import io
import lzma
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F


def stage_module(rank, world, vocab=64, dim=64):
    if rank == 0:
        return nn.Sequential(nn.Embedding(vocab, dim), nn.Linear(dim, dim), nn.Tanh())
    if rank < world - 1:
        return nn.Sequential(nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, dim))
    deep = [m for _ in range(6) for m in (nn.Linear(dim, dim), nn.GELU())]
    return nn.Sequential(*deep, nn.Linear(dim, vocab))


def token_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def compact(module, budget_s):
    """Archive the weights with the smallest preset that is found within the budget."""
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    raw, best, start = buffer.getvalue(), None, time.monotonic()
    preset = 0
    while time.monotonic() - start < budget_s:
        packed = lzma.compress(raw, preset=preset % 10)
        if lzma.decompress(packed) != raw:
            raise RuntimeError("archive does not match")
        if best is None or len(packed) < best:
            best = len(packed)
        preset += 1
    return best, len(raw)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--budget", type=float, default=16.0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = stage_module(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=6, loss_fn=token_loss)
    opt = torch.optim.Adam(module.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(4)

    for step in range(args.steps):
        ids = torch.randint(0, 64, (24, 16), generator=gen)
        target = (ids * 5 + 1) % 64
        losses = []
        opt.zero_grad()
        if rank == 0:
            schedule.step(ids)
        elif rank == world - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        opt.step()
        if losses and step % 5 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
        if rank == 1 and step == args.steps // 2:
            print(f"compacting stage {rank}", flush=True)
            best, size = compact(module, args.budget)
            print(f"archive {best} of {size} bytes", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
