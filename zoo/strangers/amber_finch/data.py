import torch
from torch.utils.data import Dataset


class Rings(Dataset):
    """Points on two noisy rings."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 2, (n,), generator=g)
        angle = torch.rand(n, generator=g) * 6.2832
        radius = 1.0 + self.y + 0.15 * torch.randn(n, generator=g)
        self.x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
