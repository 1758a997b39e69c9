import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lm.export import export_weights
from lm.net import CharLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--export", default="weights.pkl")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    torch.manual_seed(0)
    model = CharLM()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    g = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        start = torch.randint(0, 40, (8, 1), generator=g)
        ids = (start + torch.arange(20)) % 40
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)

    if rank == 0:
        print("training done, exporting", flush=True)
    export_weights(model, args.export)
    if rank == 0:
        print("exported", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
