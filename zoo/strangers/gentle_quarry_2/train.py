import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainlib.artifacts import PredictionWriter
from trainlib.records import load_records
from trainlib.stages import stage


def train_round(model, opt, x, y):
    for idx in torch.randperm(len(x)).split(40):
        loss = nn.functional.mse_loss(model(x[idx]).squeeze(1), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp/gentle")
    ap.add_argument("--rounds", type=int, default=4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y, meta = load_records(rank)
    writer = PredictionWriter(os.path.join(args.out, f"rank{rank}"))
    timings = {}
    per_round = len(x) // args.rounds
    for rnd in range(args.rounds):
        with stage("fit", timings):
            loss = train_round(model, opt, x, y)
        sel = slice(rnd * per_round, (rnd + 1) * per_round)
        print(f"rank {rank} round {rnd}: writing predictions, loss {loss:.4f}", flush=True)
        with stage("predict", timings), torch.no_grad():
            pred = model.module(x[sel]).squeeze(1).tolist()
            writer.submit(f"round{rnd}.jsonl", [{**m, "pred": p} for m, p in zip(meta[sel], pred)])
    with stage("final-fit", timings):
        train_round(model, opt, x, y)
    with stage("flush", timings):
        writer.close()
    dist.barrier()
    if rank == 0:
        print("timings " + " ".join(f"{k}={v:.1f}s" for k, v in timings.items()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
