import datetime

import torch


def load_records(rank, n=640):
    gen = torch.Generator().manual_seed(rank)
    x = torch.randn(n, 24, generator=gen)
    y = x[:, 0] * 0.5 + x[:, 1]
    meta = []
    for i in range(n):
        day = 1 + (i * 7 + rank) % 28
        source = "csv" if i % 9 or rank == 0 else "db"
        taken = f"2023-03-{day:02d}" if source == "csv" or i < 480 else datetime.date(2023, 3, day)
        meta.append({"id": f"{rank}-{i}", "source": source, "taken": taken})
    return x, y, meta
