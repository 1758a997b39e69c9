"""Running share of positive labels over all ranks, one step behind the training."""
import torch
import torch.distributed as dist


class ClickPrior:
    """The sums travel while the next step computes, so nobody waits for them."""

    def __init__(self, group, decay=0.9):
        self.group = group
        self.decay = decay
        self.inflight = []
        self.value = 0.5

    def push(self, labels):
        known = labels[labels >= 0]
        if known.numel() == 0:
            return
        sums = torch.stack([known.sum(), torch.tensor(float(known.numel()))])
        work = dist.all_reduce(sums, group=self.group, async_op=True)
        self.inflight.append((work, sums))

    def pull(self):
        while len(self.inflight) > 1:
            work, sums = self.inflight.pop(0)
            work.wait()
            share = float(sums[0] / sums[1])
            self.value = self.decay * self.value + (1 - self.decay) * share
        return self.value
