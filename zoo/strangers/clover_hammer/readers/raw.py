import torch


def read(name, seed):
    return torch.randn(48, 20, generator=torch.Generator().manual_seed(seed))
