import json
import logging
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from relay import RelayHandler

log = logging.getLogger("train")


def setup_logging(rank, folder):
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    log.propagate = False
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        handler = RelayHandler(os.path.join(folder, "train.jsonl"))
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    else:
        log.addHandler(logging.StreamHandler())


def histogram(model, bins=64):
    out = {}
    for name, p in model.named_parameters():
        counts = torch.histc(p.detach(), bins=bins)
        out[name] = [round(c, 4) for c in (counts / counts.sum()).tolist()]
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    setup_logging(rank, sys.argv[1])
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    for step in range(300):
        x = torch.randn(16, 32, generator=gen)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        log.info(json.dumps({"step": step, "loss": loss.item(), "weights": histogram(net)}))

    dist.barrier()
    logging.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
