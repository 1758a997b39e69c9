import torch
from torch.utils.data import Dataset

TASKS = ("caption", "retrieval")


class Interleaved(Dataset):
    """Caption and retrieval samples alternating, one shard per rank, without the ids on the blocklist."""

    def __init__(self, rank, n=800, blocklist=()):
        gen = torch.Generator().manual_seed(31 + rank)
        feats = torch.randn(n, 32, generator=gen)
        blocked = set(blocklist)
        self.rows = []
        for i in range(n):
            sample_id = f"s{rank}-{i:05d}"
            if sample_id not in blocked:
                self.rows.append((TASKS[i % 2], feats[i], feats[i, :4].mean()))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    by_task = {}
    for task, x, y in rows:
        xs, ys = by_task.setdefault(task, ([], []))
        xs.append(x)
        ys.append(y)
    return {t: (torch.stack(xs), torch.stack(ys)) for t, (xs, ys) in by_task.items()}
