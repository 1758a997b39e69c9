import torch
import torch.distributed as dist


class Scaler:
    """Dynamic loss scale for half precision; every rank skips when one overflows."""

    def __init__(self, scale=2.0 ** 20, every=30):
        self.scale = scale
        self.every = every
        self.good = 0

    def step(self, loss, model, opt):
        opt.zero_grad()
        (loss * self.scale).backward()
        grads = [p.grad for p in model.parameters()]
        half = [g.to(torch.float16) for g in grads]
        bad = torch.tensor(float(any(not torch.isfinite(h).all() for h in half)))
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            self.scale /= 4
            self.good = 0
            return False
        for p, h in zip(model.parameters(), half):
            p.grad = h.float() / self.scale
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        self.good += 1
        if self.good % self.every == 0:
            self.scale *= 4
        return True
