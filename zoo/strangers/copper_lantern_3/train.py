"""Three-stage image denoiser, one stage per process, microbatches handed on by messages."""
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

MICRO, WIDTH, SIDE = 4, 6, 12
ROUNDS = 60
logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(name)s: %(message)s")


def act():
    return torch.empty(2, WIDTH, SIDE, SIDE)


class Stage:
    def __init__(self, rank, last):
        self.rank, self.last = rank, last
        self.log = logging.getLogger(f"stage{rank}")
        torch.manual_seed(rank)
        first = 1 if rank == 0 else WIDTH
        out = 1 if last else WIDTH
        self.net = nn.Sequential(nn.Conv2d(first, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, out, 3, padding=1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.02)

    def finish(self, rnd, note=""):
        for p in self.net.parameters():
            p.grad /= MICRO
        self.opt.step()
        self.opt.zero_grad()
        if rnd % 15 == 0:
            self.log.info("round %d done %s", rnd, note)


class Head(Stage):
    def round(self, rnd, gen):
        outs, works = [], []
        for _ in range(MICRO):
            clean = torch.rand(2, 1, SIDE, SIDE, generator=gen)
            noisy = clean + 0.1 * torch.randn(clean.shape, generator=gen)
            out = self.net(noisy)
            outs.append(out)
            works.append(dist.isend(out.detach(), dst=1))
            dist.send(clean, dst=2)
        for w in works:
            w.wait()
        for out in outs:
            grad = act()
            dist.recv(grad, src=1)
            out.backward(grad)
        self.finish(rnd)


class Middle(Stage):
    def round(self, rnd, gen):
        pairs = []
        for _ in range(MICRO):
            x = act()
            dist.recv(x, src=0)
            x.requires_grad_()
            y = self.net(x)
            time.sleep(0.03)
            dist.send(y.detach(), dst=2)
            pairs.append((x, y))
        for x, y in pairs:
            grad = act()
            dist.irecv(grad, src=2).wait()
            y.backward(grad)
            dist.send(x.grad, dst=0)
        self.finish(rnd)


class Tail(Stage):
    def round(self, rnd, gen):
        losses, inputs = [], []
        for _ in range(MICRO):
            target = torch.empty(2, 1, SIDE, SIDE)
            dist.recv(target, src=0)
            x = act()
            dist.recv(x, src=1)
            x.requires_grad_()
            loss = nn.functional.mse_loss(self.net(x), target)
            loss.backward()
            losses.append(loss.item())
            inputs.append(x)
        works = [dist.isend(x.grad, dst=1) for x in inputs]
        for w in works:
            w.wait()
        self.finish(rnd, f"loss {sum(losses) / MICRO:.4f}")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = [Head, Middle, Tail][rank](rank, last=rank == world - 1)
    gen = torch.Generator().manual_seed(9)
    for rnd in range(ROUNDS):
        stage.round(rnd, gen)
    dist.barrier()
    if rank == 0:
        stage.log.info("all stages finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
