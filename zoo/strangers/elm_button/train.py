import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH = 32


def make_part(index, parts):
    torch.manual_seed(index)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    if index == parts - 1:
        layers.append(nn.Linear(WIDTH, 6))
    return nn.Sequential(*layers)


def loss_fn(logits, target):
    return nn.functional.cross_entropy(logits, target)


class PhaseTrainer:
    def __init__(self, module, rank, world):
        self.module, self.rank, self.world = module, rank, world
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def run(self, schedule_cls, micro_batches, steps, seed):
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        schedule = schedule_cls(stage, n_microbatches=micro_batches, loss_fn=loss_fn)
        gen = torch.Generator().manual_seed(seed)
        total = torch.zeros(1)
        for _ in range(steps):
            x = torch.randn(8 * micro_batches, WIDTH, generator=gen)
            y = x[:, :6].argmax(1)
            self.optimizer.zero_grad()
            if self.rank == 0:
                schedule.step(x)
            elif self.rank == self.world - 1:
                losses = []
                schedule.step(target=y, losses=losses)
                total += torch.stack([l.detach() for l in losses]).mean()
            else:
                schedule.step()
            self.optimizer.step()
        return self.share(total / steps)

    def share(self, value):
        last = self.world - 1
        if self.rank == last:
            time.sleep(6)  # the confusion matrix is rendered before the number goes out
            dist.broadcast(value, src=last)
            return value.item()
        received = torch.empty(1)
        dist.broadcast(received, src=last)
        return received.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainer = PhaseTrainer(make_part(rank, world), rank, world)
    phases = [("warmup", ScheduleGPipe, 2), ("main", Schedule1F1B, 6), ("anneal", ScheduleGPipe, 4)]
    for index, (name, schedule, micro) in enumerate(phases):
        if rank == 0:
            print(f"phase {name}: {micro} micro-batches", flush=True)
        mean = trainer.run(schedule, micro, args.steps, seed=index)
        print(f"[{rank}] phase {name} mean loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
