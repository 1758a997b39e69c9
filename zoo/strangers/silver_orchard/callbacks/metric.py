import torch
from torchmetrics import Metric


class MacroAccuracy(Metric):
    full_state_update = False

    def __init__(self, num_classes):
        super().__init__()
        self.add_state("hits", torch.zeros(num_classes), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(num_classes), dist_reduce_fx="sum")

    def update(self, logits, target):
        pred = logits.argmax(-1)
        ones = torch.ones_like(target, dtype=torch.float)
        self.seen.scatter_add_(0, target, ones)
        self.hits.scatter_add_(0, target, (pred == target).float())

    def compute(self):
        return (self.hits / self.seen.clamp(min=1)).mean()
