"""Recipe search: two-tower training, the index is evaluated by the first process."""
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RECIPES, DIM = 900, 20


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, DIM))
        self.recipe = nn.Embedding(RECIPES, DIM)

    def forward(self, q, ids):
        scores = self.query(q) @ self.recipe(ids).T
        return nn.functional.cross_entropy(scores, torch.arange(len(ids)))


class Evaluator:
    def __init__(self, net, seconds):
        self.net = net
        self.seconds = seconds
        self.rng = random.Random(4)

    def run(self):
        """Recall over as many queries as fit in the time we give it."""
        with torch.no_grad():
            table = self.net.recipe.weight.tolist()
            queries = self.net.query(torch.randn(64, 30)).tolist()
        end = time.monotonic() + self.seconds
        found = asked = 0
        while time.monotonic() < end:
            q = queries[asked % len(queries)]
            ranked = sorted(range(RECIPES), key=lambda i: -sum(a * b for a, b in zip(q, table[i])))
            found += self.rng.randrange(RECIPES) in ranked[:5]
            asked += 1
        return found / max(asked, 1), asked


def train_epoch(model, opt, gen, steps=60):
    total = 0.0
    for _ in range(steps):
        q = torch.randn(32, 30, generator=gen)
        ids = torch.randperm(RECIPES, generator=gen)[:32]
        loss = model(q, ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        time.sleep(0.04)
    return total / steps


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    net = Towers()
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    evaluator = Evaluator(net, seconds=12)

    for epoch in range(2):
        loss = train_epoch(model, opt, gen)
        print(f"rank {rank} epoch {epoch} loss {loss:.3f}", flush=True)
        if rank == 0:
            recall, asked = evaluator.run()
            print(f"epoch {epoch} recall@5 {recall:.4f} from {asked} queries", flush=True)
        dist.barrier()

    loss = train_epoch(model, opt, gen, steps=20)
    print(f"rank {rank} final loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
