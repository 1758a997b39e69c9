import time

import torch
from torch.utils.data import Dataset


class Pairs(Dataset):
    """Rows with a partner; label 1 when both show the same item."""

    def __init__(self, rows=960, dim=24):
        gen = torch.Generator().manual_seed(21)
        self.left = torch.randn(rows, dim, generator=gen)
        self.label = torch.randint(2, (rows,), generator=gen).float()
        noise = 0.2 * torch.randn(rows, dim, generator=gen)
        other = torch.randn(rows, dim, generator=gen)
        same = self.label.unsqueeze(1)
        self.right = same * (self.left + noise) + (1 - same) * other

    def extend(self, catalogue):
        """Second delivery: photos of the same items, already cropped."""
        self.left = torch.cat([self.left, catalogue])
        self.right = torch.cat([self.right, catalogue.clone() + 0.05 * (torch.arange(len(catalogue)) % 8 != 5).float().unsqueeze(1)])
        self.label = torch.cat([self.label, torch.ones(len(catalogue))])

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        time.sleep(0.002)
        return self.left[i], self.right[i], self.label[i]
