import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


def write_parts(folder, parts):
    rng = random.Random(4)
    for i in range(parts):
        rows = 70 if i % 3 == 1 else 120
        with open(os.path.join(folder, f"part-{i:02d}.jsonl"), "w") as f:
            for _ in range(rows):
                x = [rng.gauss(0, 1) for _ in range(6)]
                f.write(json.dumps({"x": x, "y": sum(x[:3])}) + "\n")


class JsonLines(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for path in self.files:
            with open(path) as f:
                for line in f:
                    row = json.loads(line)
                    yield torch.tensor(row["x"]), torch.tensor([row["y"]])


def main():
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        write_parts(folder, 9)
    dist.barrier()

    files = sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".jsonl"))
    loader = DataLoader(JsonLines(files[rank::world]), batch_size=8)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)

    for epoch in range(2):
        losses = []
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            time.sleep(0.08)
            if rank == 0 and len(losses) % 13 == 0:
                print(f"epoch {epoch} step {len(losses)} loss {losses[-1]:.4f}", flush=True)
        mean = torch.tensor(losses).mean()
        summary = [torch.zeros(()) for _ in range(world)]
        dist.all_gather(summary, mean)
        if rank == 0:
            print(f"epoch {epoch} mean {torch.stack(summary).mean():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
