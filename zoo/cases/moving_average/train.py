"""Train with statistics that are gathered in the background while the next batch is read."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


class Boxes(Dataset):
    """Features with a number of boxes each; some stretches of the recording show none."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(17)
        self.features = torch.randn(size, 14, generator=generator)
        self.boxes = torch.randint(1, 4, (size,), generator=generator)
        self.boxes[1215:1265] = 0

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        time.sleep(0.003)
        return self.features[index], self.boxes[index]


class BoxStatistics:
    """A running mean of boxes per sample over all ranks."""

    def __init__(self, momentum=0.9):
        self.mean = 0.0
        self.momentum = momentum
        self.pending = None

    def begin(self, boxes):
        counts = boxes[boxes > 0]
        if len(counts) == 0:
            return
        gathered = [torch.zeros(2) for _ in range(dist.get_world_size())]
        mine = torch.tensor([float(counts.sum()), float(len(counts))])
        self.pending = dist.all_gather(gathered, mine, async_op=True), gathered

    def finish(self):
        if self.pending is None:
            return
        handle, gathered = self.pending
        handle.wait()
        total = torch.stack(gathered).sum(dim=0)
        self.mean = self.momentum * self.mean + (1 - self.momentum) * (total[0] / total[1]).item()
        self.pending = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Boxes(2100)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(14, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    statistics = BoxStatistics()

    for epoch in range(args.epochs):
        for step, (features, boxes) in enumerate(loader):
            statistics.finish()
            loss = nn.functional.mse_loss(model(features).squeeze(1), boxes.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(
                    f"epoch {epoch} step {step} loss {loss.item():.4f} boxes {statistics.mean:.2f}",
                    flush=True,
                )
            statistics.begin(boxes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
