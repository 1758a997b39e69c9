import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Curriculum:
    """Documents of growing length, stage by stage; what a rank holds was fixed when the corpus was split."""

    LIMITS = (64, 128, 512, 2048)

    def __init__(self, rank):
        gen = torch.Generator().manual_seed(rank)
        longest = 500 if rank == 2 else 1900
        self.lengths = torch.randint(8, longest, (400,), generator=gen)

    def stage(self, index):
        low = self.LIMITS[index - 1] if index else 0
        chosen = self.lengths[(self.lengths > low) & (self.lengths <= self.LIMITS[index])]
        return chosen[:40].tolist()


def run_stage(model, opt, lengths, steps=45):
    for step in range(steps):
        length = lengths[step % len(lengths)]
        x = torch.randn(8, 26) / (1 + length / 1000)
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    curriculum = Curriculum(rank)
    torch.manual_seed(13)
    model = DDP(nn.Sequential(nn.Linear(26, 20), nn.ReLU(), nn.Linear(20, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(args.passes):
        for index, limit in enumerate(curriculum.LIMITS):
            lengths = curriculum.stage(index)
            if not lengths:
                print(f"[{rank}] no documents up to {limit}, finished", flush=True)
                dist.destroy_process_group()
                return
            loss = run_stage(model, opt, lengths)
            if rank == 0:
                print(f"stage {index} (up to {limit}) loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
