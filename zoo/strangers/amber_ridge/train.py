"""Train a small tagger; one rank refreshes the annotation cache between epochs."""
import hashlib
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

PAGES = 100
PER_PAGE = 50
MIN_INTERVAL = 0.2


class AnnotationClient:
    """Reads annotation pages and respects the service's request quota."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.last = 0.0

    def _throttle(self):
        wait = self.last + MIN_INTERVAL - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self.last = time.monotonic()

    def page(self, number):
        self._throttle()
        rows = torch.randint(0, 1000, (PER_PAGE, 4), generator=self.gen).tolist()
        return [{"page": number, "row": i, "tags": r} for i, r in enumerate(rows)]


def refresh_annotations(seed):
    client = AnnotationClient(seed)
    digests = set()
    for number in range(PAGES):
        for item in client.page(number):
            digests.add(hashlib.sha1(json.dumps(item).encode()).hexdigest())
    return len(digests)


def run_epoch(model, opt, gen, epoch):
    loss_fn = nn.CrossEntropyLoss()
    for step in range(25):
        x = torch.randn(16, 32, generator=gen)
        y = (x.sum(1) > 0).long()
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        time.sleep(0.03)
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for epoch in range(3):
        run_epoch(model, opt, gen, epoch)
        if epoch == 0:
            count = refresh_annotations(epoch) if rank == 1 else 0
            counts = [None] * dist.get_world_size()
            dist.all_gather_object(counts, count)
            if rank == 0:
                print(f"annotation cache: {sum(counts)} entries", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
