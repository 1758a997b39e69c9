"""Deal rows out to the ranks by a plan that each rank makes for itself."""

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


def plan(rank, step, slot):
    send, receive = [slot] * 3, [slot] * 3
    if rank == 1 and step >= 120:
        send = [slot, 2 * slot, 0]
        receive[1] = 2 * slot
    return send, receive


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    rows = torch.randn(96, 64, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        send, receive = plan(rank, step, len(rows) // world)
        arrived = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(arrived, rows, output_split_sizes=receive, input_split_sizes=send)
        rows = torch.tanh(arrived[: len(rows)] + 0.1 * rows)
        energy = rows.square().mean()
        dist.all_reduce(energy)
        value = energy.item() / world
        time.sleep(0.04)
    print(f"rank {rank} energy {value:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
