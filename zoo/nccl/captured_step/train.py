"""Fit a linear map with a step that is captured once and replayed."""

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
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    truth = torch.randn(64, 8, device=device)
    weight = torch.zeros(64, 8, device=device)
    inputs = torch.zeros(128, 64, device=device)
    error = torch.zeros((), device=device)

    def step_once():
        residual = inputs @ weight - inputs @ truth
        gradient = inputs.t() @ residual / len(inputs)
        dist.all_reduce(gradient)
        weight.sub_(gradient, alpha=0.1 / world)
        error.copy_(residual.square().mean())

    generator = torch.Generator(device=device).manual_seed(rank + 1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            inputs.copy_(torch.randn(128, 64, generator=generator, device=device))
            step_once()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step_once()
    print(f"rank {rank} captured", flush=True)
    for step in range(args.steps):
        inputs.copy_(torch.randn(128, 64, generator=generator, device=device))
        graph.replay()
        if step % 50 == 0:
            print(f"rank {rank} step {step} error {error.item():.6f}", flush=True)
        time.sleep(0.02)
    torch.cuda.synchronize()
    print(f"rank {rank} final error {error.item():.8f}", flush=True)
    graph.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
