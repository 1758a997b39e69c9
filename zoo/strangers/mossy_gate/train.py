import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from stages import SlowHead, Stage

DIM, CLASSES, MICRO, BATCH = 32, 5, 4, 8


def build(rank, world):
    torch.manual_seed(rank)
    if rank == 0:
        return nn.Sequential(nn.Linear(16, DIM), nn.Tanh())
    if rank == world - 1:
        return SlowHead(DIM, CLASSES)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(MICRO, BATCH, 16, generator=g)
    return x, x[:, :, :CLASSES].argmax(-1)


def train_step(stage, rank, world, step):
    x, y = batch(step)
    if rank == 0:
        for i in range(MICRO):
            stage.forward(x[i])
        for _ in range(MICRO):
            stage.backward()
        total = None
    elif rank == world - 1:
        total = 0.0
        losses = []
        for i in range(MICRO):
            losses.append(F.cross_entropy(stage.forward(), y[i]) / MICRO)
        for loss in losses:
            stage.backward(loss)
            total += loss.item()
    else:
        for _ in range(MICRO):
            stage.forward()
        for _ in range(MICRO):
            stage.backward()
        total = None
    stage.step()
    return total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(build(rank, world), rank, world, (BATCH, DIM))
    for step in range(30):
        total = train_step(stage, rank, world, step)
        if total is not None and step % 5 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)
    dist.barrier()
    if rank == world - 1:
        print("pipeline finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
