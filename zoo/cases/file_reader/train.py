"""I/O benchmark: every rank reads its share of the files in full batches, step by step."""

import argparse
import math
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def write_files(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        torch.save(torch.randn(256, generator=generator), folder / f"img_{number:03d}.pt")


def my_files(files, rank, world):
    share = math.ceil(len(files) / world)
    return files[rank * share : (rank + 1) * share]


def full_batches(files, size):
    for start in range(0, len(files) - size + 1, size):
        yield torch.stack([torch.load(path) for path in files[start : start + size]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=None)
    parser.add_argument("--files", type=int, default=145)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--compute-s", type=float, default=0.2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(args.data or tempfile.gettempdir()) / "bench_files"
    if rank == 0:
        write_files(folder, args.files)
    dist.barrier()
    files = my_files(sorted(folder.glob("*.pt")), rank, world)

    for epoch in range(args.epochs):
        start, step = time.perf_counter(), 0
        for batch in full_batches(files, args.batch_size):
            time.sleep(args.compute_s)
            mean = batch.mean()
            dist.all_reduce(mean)
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} rank {rank} step {step} mean {mean.item():.4f}", flush=True)
        print(f"epoch {epoch} rank {rank} read {step} batches", flush=True)
        dist.barrier()  # end of the epoch
        if rank == 0:
            print(f"epoch {epoch}: {time.perf_counter() - start:.1f} s", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
