"""Ripeness of apples from knock tests."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import AppleSounds, write_shard


class Knock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 7, stride=2), nn.ReLU(), nn.Conv1d(8, 8, 5, stride=2), nn.ReLU())
        self.head = nn.LazyLinear(1)
        self(torch.zeros(1, width))

    def forward(self, x):
        return self.head(self.conv(x[:, None]).flatten(1)).squeeze(1)


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    path = args.data / f"shard{rank}.bin"
    if not path.exists():
        args.data.mkdir(parents=True, exist_ok=True)
        write_shard(path, seed=rank)

    torch.manual_seed(4)
    model = DDP(Knock(args.width), gradient_as_bucket_view=True)
    model.register_comm_hook(None, fp16_compress_hook)
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr)
    loader = DataLoader(AppleSounds(path, rank, args.width), batch_size=args.batch)
    steps_per_epoch = 320 // args.batch

    for epoch in range(args.epochs):
        correct = torch.zeros(2)
        for step, (x, y) in enumerate(loader):
            out = model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(out, y.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += torch.tensor([((out > 0) == (y > 0.5)).sum(), len(y)])
            if rank == 0 and step % 20 == 0:
                print(f"epoch {epoch} step {step}/{steps_per_epoch} loss {loss.item():.3f}", flush=True)
        dist.all_reduce(correct)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {(correct[0] / correct[1]).item():.3f} on {world} shards", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/tmp/orchard"))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(parser.parse_args())
    finally:
        dist.destroy_process_group()
