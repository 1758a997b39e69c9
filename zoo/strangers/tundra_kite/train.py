import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from reader import ShardReader, write_shards

ROWS = [80, 80, 100, 80]


def next_batch(reader, size):
    rows = torch.tensor([reader.read() for _ in range(size)])
    return rows[:, :8], rows[:, 8]


def checkpoint(model, optimizer, reader, rank, step, work):
    model_sd, optim_sd = get_state_dict(model, optimizer)
    state = {
        "model": model_sd,
        "optim": optim_sd,
        "step": step,
        "readers": {f"rank{rank}": reader.state_dict()},
    }
    dcp.save(state, checkpoint_id=Path(work) / f"step{step}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", default="work")
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--save-every", type=int, default=60)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    reader = ShardReader(write_shards(args.work, rank, 6, ROWS[rank]))
    model = DDP(nn.Sequential(nn.Linear(8, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    for step in range(1, args.steps + 1):
        x, y = next_batch(reader, 16)
        loss = F.mse_loss(model(x).squeeze(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % args.save_every == 0:
            if rank == 0:
                print(f"saving checkpoint at step {step}", flush=True)
            checkpoint(model, optimizer, reader, rank, step, args.work)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("finished", flush=True)


if __name__ == "__main__":
    main()
