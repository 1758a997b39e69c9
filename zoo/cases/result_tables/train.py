"""Train, then let each rank work out its own tables."""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def tables(model, rank, seconds):
    """The tables of the later ranks are larger."""
    rows = []
    end = time.monotonic() + seconds * rank
    while time.monotonic() < end:
        rows.append(model(torch.randn(8, 12)).mean().item())
        time.sleep(0.25)
    return {"rank": rank, "rows": len(rows), "mean": sum(rows) / max(1, len(rows))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="tables")
    parser.add_argument("--apart", type=float, default=5.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(40):
        time.sleep(0.04)
        loss = model(torch.randn(16, 12)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    table = tables(model.module, rank, args.apart)
    Path(args.output).mkdir(parents=True, exist_ok=True)
    (Path(args.output) / f"{rank}.json").write_text(json.dumps(table))
    print(f"rank {rank} wrote {table['rows']} rows", flush=True)


if __name__ == "__main__":
    main()
