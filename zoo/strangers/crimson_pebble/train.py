import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

INPUTS, DIM, CLASSES = 10, 24, 6


def stage_module(rank, world):
    torch.manual_seed(rank)
    if rank == 0:
        return nn.Sequential(nn.Linear(INPUTS, DIM), nn.ReLU())
    if rank == world - 1:
        return nn.Linear(DIM, CLASSES)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())


def smooth_loss(logits, target):
    weights = torch.full((CLASSES,), 1.0)
    hard = F.cross_entropy(logits, target, weight=weights)
    return 0.9 * hard - 0.1 * F.log_softmax(logits, -1).mean()


def load_step(step, batch=16):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(batch, INPUTS, generator=g)
    score = x[:, 0] + 0.4 * x[:, 1]
    y = torch.bucketize(score, torch.tensor([-1.5, -0.7, 0.0, 0.7, 1.5]))
    y[score > 2.95] = CLASSES
    return x, y


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = stage_module(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=smooth_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(100):
        x, y = load_step(step)
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            losses = []
            print(f"step {step} labels {y.min().item()}..{y.max().item()}", flush=True)
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
