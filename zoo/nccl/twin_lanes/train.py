"""Power sums of two matrices, each in its own lane: a stream and a group of its own."""

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


def repeats(rank, step, name):
    """How many terms this rank has to add up; every twentieth step has long ones."""
    if step % 20 == 0 and step > 0:
        return {("left", 0): 600, ("right", 1): 600, ("left", 2): 100}.get((name, rank), 4)
    return 2 + (step + 2 * rank + len(name)) % 5


def power_sum(matrix, count):
    value = matrix
    for _ in range(count):
        value = torch.addmm(matrix, value, matrix, beta=0.5, alpha=0.4)
    return value.diagonal().sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=4096)
    args = parser.parse_args()
    rank, _, device = connect()
    names = ("left", "right")
    groups = {name: dist.new_group() for name in names}
    lanes = {name: torch.cuda.Stream() for name in names}
    torch.manual_seed(rank)
    matrices = {name: torch.randn(args.size, args.size, device=device) / args.size**0.5 for name in names}
    for name in names:
        dist.all_reduce(torch.zeros(1, device=device), group=groups[name])
        torch.cuda.synchronize()

    history = []
    for step in range(args.steps):
        if rank == 0 and step % 10 == 0:
            print(f"step {step} begins", flush=True)
        sums, works = {}, {}
        for name in names:
            lane = lanes[name]
            lane.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(lane):
                sums[name] = power_sum(matrices[name], repeats(rank, step, name))
                works[name] = dist.all_reduce(sums[name], group=groups[name], async_op=True)
        waiting = list(names)
        while waiting:
            # Whichever lane is done first is taken first, and that is not the same one on every rank.
            for name in [name for name in waiting if works[name].is_completed()]:
                works[name].wait()
                history.append((step, name, sums[name].item()))
                waiting.remove(name)
            time.sleep(0.002)
        for lane in lanes.values():
            torch.cuda.current_stream().wait_stream(lane)
        time.sleep(0.05)
    total = sum(value for _, _, value in sorted(history))
    print(f"rank {rank} total {total:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
