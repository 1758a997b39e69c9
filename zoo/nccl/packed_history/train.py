"""Train and keep a packed copy of the whole training state."""

import argparse
import gzip
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def pack(path, model, optimizer):
    with gzip.open(path, "wb", compresslevel=6) as file:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--width", type=int, default=2800)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(0)
    layers = [nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 8)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(2):
        for step in range(25):
            generator = torch.Generator(device=device).manual_seed(1000 * rank + 100 * epoch + step)
            inputs = torch.randn(32, args.width, generator=generator, device=device)
            loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(dim=1) > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item()
            time.sleep(0.02)
        if rank == 0:
            print(f"epoch {epoch} loss {value:.4f}", flush=True)
            started = time.perf_counter()
            pack(args.folder / f"epoch{epoch}.gz", model, optimizer)
            print(f"epoch {epoch} packed in {time.perf_counter() - started:.1f} s", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
