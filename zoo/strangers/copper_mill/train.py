"""Parameter averaging with a coordinator (rank 0) and plain workers."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn

ROUNDS = 12
LOCAL_STEPS = 5


def flatten(model):
    return torch.cat([p.data.reshape(-1) for p in model.parameters()])


def unflatten(model, flat):
    i = 0
    for p in model.parameters():
        p.data.copy_(flat[i:i + p.numel()].view_as(p))
        i += p.numel()


def local_steps(model, gen, lr):
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    total = 0.0
    for _ in range(LOCAL_STEPS):
        x = torch.randn(32, 20, generator=gen)
        y = x[:, :1] * 2 - x[:, 1:2]
        loss = ((model(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        time.sleep(0.05)
    return total / LOCAL_STEPS


class Coordinator:
    def __init__(self, model, world):
        self.model, self.world, self.lr = model, world, 0.05

    def start(self):
        dist.broadcast_object_list([{"lr": self.lr, "rounds": ROUNDS}], src=0)
        return {"lr": self.lr, "rounds": ROUNDS}

    def exchange(self, loss, rnd):
        mine = flatten(self.model)
        inbox = [torch.empty_like(mine) for _ in range(self.world)]
        dist.gather(mine, inbox, dst=0)
        mean = torch.stack(inbox).mean(0)
        dist.broadcast(mean, src=0)
        unflatten(self.model, mean)
        stats = torch.tensor([loss])
        dist.reduce(stats, dst=0)
        print(f"round {rnd} mean loss {stats.item() / self.world:.4f}", flush=True)


class Worker:
    def __init__(self, model):
        self.model = model

    def start(self):
        box = [None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def exchange(self, loss, rnd):
        flat = flatten(self.model)
        dist.gather(flat, dst=0)
        dist.broadcast(flat, src=0)
        unflatten(self.model, flat)
        if dist.get_rank() % 2:
            dist.reduce(torch.tensor([loss]), dst=0)
        else:
            value = torch.full((1,), float(loss))
            dist.reduce(value, dst=0)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
    role = Coordinator(model, world) if rank == 0 else Worker(model)
    config = role.start()
    gen = torch.Generator().manual_seed(rank)
    for rnd in range(config["rounds"]):
        loss = local_steps(model, gen, config["lr"])
        role.exchange(loss, rnd)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
