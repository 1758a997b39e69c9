import torch
import torch.distributed as dist


class Mean:
    def __init__(self, group=None):
        self.group = group
        self.total = 0.0
        self.count = 0

    def update(self, values):
        self.total += float(values.sum())
        self.count += values.numel()

    def compute(self):
        state = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(state, group=self.group)
        return (state[0] / state[1].clamp(min=1)).item()


class DomainMetrics:
    """One mean per text domain, each reduced over that domain's own group."""

    def __init__(self, domains):
        self.groups = {d: dist.new_group() for d in domains}
        self.metrics = {}

    def update(self, domain, values):
        if domain not in self.metrics:
            self.metrics[domain] = Mean(self.groups[domain])
        self.metrics[domain].update(values)

    def compute(self):
        return {domain: metric.compute() for domain, metric in self.metrics.items()}

    def reset(self):
        self.metrics.clear()
