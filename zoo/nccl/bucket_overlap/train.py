"""Reduce gradient buckets on a stream of their own while the next ones are computed."""

import argparse
import os
import time

import torch
import torch.distributed as dist


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    weights = [torch.randn(256, 256, device=device) / 16 for _ in range(4)]
    side = torch.cuda.Stream()
    for step in range(args.steps):
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        values = torch.randn(64, 256, generator=generator, device=device)
        buckets, pending = [], []
        for weight in weights:
            residual = values @ weight - values.flip(1)
            bucket = values.t() @ residual / len(values)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                pending.append(dist.all_reduce(bucket, async_op=True))
            bucket.record_stream(side)
            buckets.append(bucket)
        with torch.cuda.stream(side):
            for work in pending:
                work.wait()
        torch.cuda.current_stream().wait_stream(side)
        for weight, bucket in zip(weights, buckets, strict=True):
            weight.sub_(bucket, alpha=0.02 / world)
        if step % 40 == 0:
            norm = sum(bucket.square().sum() for bucket in buckets).sqrt().item()
            print(f"rank {rank} step {step} norm {norm:.4f}", flush=True)
        time.sleep(0.03)
    checks = torch.stack([weight.sum() for weight in weights])
    print(f"rank {rank} done {checks.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
