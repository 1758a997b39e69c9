import torch
import torch.nn as nn


class Siamese(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, out))

    def forward(self, left, right):
        a = self.net(left)
        b = self.net(right)
        return torch.sqrt((a - b).pow(2).sum(dim=1))


def contrastive(distance, label, margin=1.0):
    pull = label * distance.pow(2)
    push = (1 - label) * torch.relu(margin - distance).pow(2)
    return (pull + push).mean()
