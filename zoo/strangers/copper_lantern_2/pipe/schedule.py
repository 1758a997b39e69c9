import torch
import torch.distributed as dist
import torch.nn.functional as F

from .stages import WIDTH


class Schedule:
    """One micro-batch in flight: forward down the stages, gradient back up."""

    def __init__(self, stage, optimizer, rank, world, batch, seq):
        self.stage = stage
        self.optimizer = optimizer
        self.rank = rank
        self.world = world
        self.shape = (batch, seq, WIDTH)

    @property
    def is_first(self):
        return self.rank == 0

    @property
    def is_last(self):
        return self.rank == self.world - 1

    def run(self, tokens, labels):
        self.optimizer.zero_grad()
        if self.is_first:
            out = self.stage(tokens)
            dist.send(out.detach(), dst=1)
            grad = torch.empty(self.shape)
            dist.recv(grad, src=1)
            out.backward(grad)
            self.optimizer.step()
            return None

        hidden = torch.empty(self.shape)
        dist.recv(hidden, src=self.rank - 1)
        hidden.requires_grad_(True)
        if self.is_last:
            return self.finish(hidden, labels)

        out = self.stage(hidden)
        dist.send(out.detach(), dst=self.rank + 1)
        grad = torch.empty(self.shape)
        dist.recv(grad, src=self.rank + 1)
        out.backward(grad)
        dist.send(hidden.grad, dst=self.rank - 1)
        self.optimizer.step()
        return None

    def finish(self, hidden, labels):
        keep = labels != -100
        if not keep.any():
            # cross entropy over nothing is not defined
            return 0.0
        logits = self.stage(hidden)
        loss = F.cross_entropy(logits[keep], labels[keep])
        loss.backward()
        dist.send(hidden.grad, dst=self.rank - 1)
        self.optimizer.step()
        return loss.item()
