import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Pairs(Dataset):
    """Image/caption pairs; captions are token ids, an unreadable image yields None."""

    def __init__(self, n=1536, unreadable=()):
        gen = torch.Generator().manual_seed(9)
        topic = torch.randint(0, 30, (n,), generator=gen)
        basis = torch.randn(30, 20, generator=gen)
        self.images = basis[topic] + 0.3 * torch.randn(n, 20, generator=gen)
        self.captions = topic.unsqueeze(1) + torch.randint(0, 3, (n, 5), generator=gen)
        self.unreadable = set(unreadable)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        if i in self.unreadable:
            return None
        return self.images[i], self.captions[i]


def collate(items):
    items = [it for it in items if it is not None]
    images, captions = zip(*items)
    return torch.stack(images), torch.stack(captions)


def make_loader(batch_size):
    data = Pairs(unreadable={1130})
    sampler = DistributedSampler(data, shuffle=False, drop_last=True)
    return DataLoader(data, batch_size, sampler=sampler, num_workers=1, collate_fn=collate, drop_last=True)
