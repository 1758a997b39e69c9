import argparse
import resource
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from model import DocClassifier


def documents(rank, count=80):
    """(token ids, label), one document at a time; lengths as crawled."""
    gen = torch.Generator().manual_seed(90 + rank)
    lengths = torch.randint(60, 400, (count,), generator=gen).tolist()
    if rank == 2:
        lengths[25] = 31744  # a whole statute book
    for n in lengths:
        label = int(torch.randint(0, 6, (1,), generator=gen))
        ids = torch.randint(0, 500, (1, n), generator=gen)
        ids[:, ::3] = label * 7
        yield ids, torch.tensor([label])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--mem-gb", type=float, default=8.0)
    args = ap.parse_args()
    limit = int(args.mem_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(DocClassifier())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (ids, label) in enumerate(documents(rank)):
        loss = nn.functional.cross_entropy(model(ids), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.12)
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
