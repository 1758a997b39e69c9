"""Train on a grid of ranks: tensor parallel in rows, replicas in columns."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


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
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replica", "tensor"))
    groups = {"partial": mesh.get_group("tensor"), "norm": dist.group.WORLD, "gradient": mesh.get_group("replica")}
    torch.manual_seed(mesh.get_local_rank("tensor"))
    weight = torch.randn(32, 16, device=device) / 6
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        generator = torch.Generator(device=device).manual_seed(1000 * mesh.get_local_rank("replica") + step)
        inputs = torch.randn(64, 32, generator=generator, device=device)
        values = {"partial": (inputs @ weight).sum(dim=1), "norm": weight.square().sum()}
        names = ["partial", "norm"]
        if rank == 3 and step == 120:
            names.sort()
        for name in names:
            dist.all_reduce(values[name], group=groups[name])
        residual = values["partial"] - inputs.sum(dim=1)
        gradient = inputs.t() @ residual[:, None].expand(-1, 16) / 64 + 1e-3 * values["norm"].sqrt() * weight
        dist.all_reduce(gradient, group=groups["gradient"])
        weight -= 0.001 * gradient
        value = residual.square().mean().item()
        time.sleep(0.04)
    print(f"rank {rank} loss {value:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
