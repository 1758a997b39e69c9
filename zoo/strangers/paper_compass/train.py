import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

MICRO, BATCH, HID = 16, 64, 80


class Stage:
    """One slice of the network; talks to its neighbours with plain send/recv."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        torch.manual_seed(rank)
        if rank == 0:
            self.net = nn.Sequential(nn.Linear(20, HID), nn.ReLU())
        elif rank < world - 1:
            self.net = nn.Sequential(nn.Linear(HID, HID), nn.ReLU())
        else:
            self.net = nn.Linear(HID, 5)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def recv_act(self):
        act = torch.empty(MICRO, HID)
        dist.recv(act, src=self.rank - 1)
        return act.requires_grad_()

    def send_grad(self, act):
        dist.send(act.grad, dst=self.rank - 1)

    def body(self, inputs, n_micro):
        """Every stage but the last."""
        for m in range(n_micro):
            act = inputs[m] if self.rank == 0 else self.recv_act()
            out = self.net(act)
            dist.send(out.detach(), dst=self.rank + 1)
            grad = torch.empty_like(out)
            dist.recv(grad, src=self.rank + 1)
            out.backward(grad / n_micro)
            if self.rank > 0:
                self.send_grad(act)

    def tail(self, labels):
        n_micro = math.ceil(len(labels) / MICRO)
        total = 0.0
        for m in range(n_micro):
            act = self.recv_act()
            target = labels[m * MICRO : (m + 1) * MICRO]
            loss = F.cross_entropy(self.net(act)[: len(target)], target)
            loss.backward()
            self.send_grad(act)
            total += loss.item()
        return total / n_micro


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(1000, 20, generator=gen)
    y = x[:, :5].argmax(1)
    n_batches = math.ceil(len(x) / BATCH)
    for epoch in range(3):
        running = 0.0
        for b in range(n_batches):
            xb, yb = x[b * BATCH : (b + 1) * BATCH], y[b * BATCH : (b + 1) * BATCH]
            stage.opt.zero_grad()
            if rank == world - 1:
                running += stage.tail(yb)
            else:
                stage.body(xb.split(MICRO), n_micro=len(xb) // MICRO)
            stage.opt.step()
            time.sleep(0.2)
            if rank == world - 1 and b % 5 == 4:
                print(f"epoch {epoch} batch {b + 1}/{n_batches} loss {running / (b + 1):.3f}", flush=True)
        summary = torch.tensor([running / n_batches])
        dist.all_reduce(summary)
        if rank == 0:
            print(f"epoch {epoch} mean loss {summary.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
