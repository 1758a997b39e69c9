"""Contrastive training with one tower per rank; the towers meet by exchanging normalised features."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

TOWERS = ("image", "audio", "text")
FEATURES = 32


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=250, help="feature exchanges in the whole run")
    parser.add_argument("--eval-every", type=int, default=60, help="training steps between two evaluations")
    parser.add_argument("--eval-samples", type=int, default=80)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Source:
    """Samples of one modality; sample i shows the same scene in every modality."""

    def __init__(self, modality, args, device):
        self.modality, self.args, self.device = modality, args, device
        self.view = torch.randn(12, 40, generator=torch.Generator().manual_seed(TOWERS.index(modality)))
        levels = random.Random(17)
        self.level = [levels.uniform(0.0, 1.0) for _ in range(args.eval_samples)]

    def render(self, samples):
        scenes = torch.stack([torch.randn(12, generator=torch.Generator().manual_seed(i)) for i in samples])
        return (scenes @ self.view).to(self.device)

    def training(self):
        first = 1000
        while True:
            yield self.render(range(first, first + self.args.batch))
            first += self.args.batch

    def usable(self, sample):
        return self.modality != "audio" or self.level[sample] > 0.05

    def evaluation(self):
        samples = [i for i in range(self.args.eval_samples) if self.usable(i)]
        for start in range(0, len(samples) - self.args.batch + 1, self.args.batch):
            yield self.render(samples[start : start + self.args.batch])


class Exchange:
    def __init__(self, rank, world):
        self.rank, self.world, self.rounds = rank, world, 0

    def meet(self, features):
        everyone = torch.empty(self.world * features.shape[0], FEATURES, device=features.device)
        dist.all_gather_into_tensor(everyone, features.detach().contiguous())
        self.rounds += 1
        return everyone.view(self.world, features.shape[0], FEATURES)


class Tower:
    def __init__(self, args, exchange, device):
        self.exchange = exchange
        torch.manual_seed(exchange.rank)
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, FEATURES)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr)

    def encode(self, batch):
        return nn.functional.normalize(self.net(batch), dim=1)

    def train_step(self, batch):
        own = self.encode(batch)
        towers = self.exchange.meet(own)
        targets = torch.arange(own.shape[0], device=own.device)
        loss = sum(
            nn.functional.cross_entropy(own @ other.t() / 0.2, targets)
            for index, other in enumerate(towers)
            if index != self.exchange.rank
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, batches):
        found = seen = 0
        for batch in batches:
            towers = self.exchange.meet(self.encode(batch))
            nearest = (towers[0] @ towers[-1].t()).argmax(1)
            found += (nearest == torch.arange(len(nearest), device=nearest.device)).sum().item()
            seen += len(nearest)
            time.sleep(0.04)
        return found / max(seen, 1)


def main():
    args = parse_args()
    rank, world, device = setup()
    exchange = Exchange(rank, world)
    tower, source = Tower(args, exchange, device), Source(TOWERS[rank], args, device)
    dist.barrier()
    step = 0
    for batch in source.training():
        if exchange.rounds >= args.rounds:
            break
        loss = tower.train_step(batch)
        step += 1
        if step % 10 == 0:
            print(f"{TOWERS[rank]} step {step:03d} loss {loss:.4f}", flush=True)
        if step % args.eval_every == 0:
            print(f"{TOWERS[rank]} evaluation {step // args.eval_every} begins", flush=True)
            print(f"{TOWERS[rank]} recall {tower.evaluate(source.evaluation()):.3f}", flush=True)
        time.sleep(0.04)
    dist.barrier()
    print(f"{TOWERS[rank]} finished after {exchange.rounds} rounds", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
