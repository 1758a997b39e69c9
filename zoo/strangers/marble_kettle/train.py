"""Language identification on short strings; runs on nodes with leases of different length."""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = Path(__file__).parent


class Lease:
    def __init__(self, rank):
        table = json.loads((HERE / "leases.json").read_text())
        self.steps = table.get(str(rank), 400)

    def used_up(self, step):
        return step >= self.steps


class CharBag(nn.Module):
    def __init__(self, chars=96, langs=7):
        super().__init__()
        self.emb = nn.EmbeddingBag(chars, 24, mode="mean")
        self.head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, langs))

    def forward(self, ids):
        return self.head(self.emb(ids))


class Runner:
    def __init__(self, out):
        self.rank = dist.get_rank()
        self.out = Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.lease = Lease(self.rank)
        torch.manual_seed(21)
        self.model = DDP(CharBag())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.gen = torch.Generator().manual_seed(self.rank)
        self.step = 0

    def batch(self):
        lang = torch.randint(7, (32,), generator=self.gen)
        ids = torch.randint(0, 40, (32, 20), generator=self.gen) + lang[:, None] * 8
        return ids, lang

    def save(self, name):
        state = {"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "step": self.step}
        torch.save(state, self.out / name)

    def leave(self):
        self.save(f"lease_{self.rank}.pt")
        print(f"[{self.rank}] lease used up at step {self.step}, state saved", flush=True)
        sys.exit(0)

    def fit(self, steps):
        for self.step in range(1, steps + 1):
            if self.lease.used_up(self.step):
                self.leave()
            ids, lang = self.batch()
            time.sleep(0.08)
            loss = nn.functional.cross_entropy(self.model(ids), lang)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.step % 15 == 0 and self.rank == 0:
                print(f"step {self.step:4d} loss {loss.item():.3f}", flush=True)
        dist.barrier()
        if self.rank == 0:
            self.save("final.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Runner(args.out).fit(args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
