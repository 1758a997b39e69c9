"""Train a tagger on labelled rows that data-loading workers parse."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def make_rows(count):
    rows = [f"{n}\t{n % 7}\t" + ",".join(str((n * k) % 11) for k in range(12)) for n in range(count)]
    rows[1301] = "1301\t3\t" + ",".join(["5"] * 11 + ["n/a"])
    return rows


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(0.003)
        _, label, values = self.rows[index].split("\t")
        features = torch.tensor([float(value) for value in values.split(",")])
        return features, int(label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Rows(make_rows(args.rows))
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, 16, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(nn.Linear(12, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (features, labels) in enumerate(loader):
        print(f"rank {rank} step {step}", flush=True)
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
