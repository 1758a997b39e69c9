"""Route tokens to experts, one expert a rank."""

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


def exchange(tokens, send, receive):
    received = tokens.new_empty(sum(receive), tokens.shape[1])
    dist.all_to_all_single(received, tokens, output_split_sizes=receive, input_split_sizes=send)
    return received


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    expert = torch.randn(32, 32, device=device) / 6
    for step in range(args.steps):
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        tokens = torch.randn(96 + 8 * rank + step % 7, 32, generator=generator, device=device)
        choice = (tokens[:, 0].abs() * 2).long().clamp(max=world - 1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=world)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, receive = counts.tolist(), arriving.tolist()
        routed = exchange(tokens[order], send, receive)
        returned = exchange(torch.tanh(routed @ expert), receive, send)
        result = torch.empty_like(tokens)
        result[order] = returned
        load = torch.tensor([float(sum(receive))], device=device)
        dist.all_reduce(load, op=dist.ReduceOp.MAX)
        if rank == 0 and step % 25 == 0:
            print(f"step {step} mean {result.mean().item():.5f} busiest {load.item():.0f}", flush=True)
        time.sleep(0.03)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
