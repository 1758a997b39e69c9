import torch
from torch.utils.data import Dataset


class TripletShard(Dataset):
    """Anchor, positive, negative; positives are other shots of the same product."""

    def __init__(self, rank, n=2400, products=40):
        gen = torch.Generator().manual_seed(77 + rank)
        base = torch.randn(products, 32, generator=torch.Generator().manual_seed(4))
        which = torch.randint(0, products, (n,), generator=gen)
        other = (which + torch.randint(1, products, (n,), generator=gen)) % products
        self.anchor = base[which] + 0.2 * torch.randn(n, 32, generator=gen)
        self.positive = base[which] + 0.2 * torch.randn(n, 32, generator=gen)
        self.negative = base[other] + 0.2 * torch.randn(n, 32, generator=gen)
        for i in reuploads(rank):
            self.positive[i] = self.anchor[i]

    def __len__(self):
        return len(self.anchor)

    def __getitem__(self, i):
        return self.anchor[i], self.positive[i], self.negative[i]


def reuploads(rank):
    # sellers now and then upload one shot twice under different names
    return {1: [1303]}.get(rank, [])
