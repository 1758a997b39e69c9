"""Fine-tune a small classifier; rank 0 scores the full test set between the epochs."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 2
STEPS = 180
TEST_BATCHES = 250


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", 0)


class Classifier(nn.Module):
    def __init__(self, width=96, classes=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, classes)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def make_batch(seed, device, size=32):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 48, generator=generator)
    labels = inputs[:, :6].argmax(dim=1)
    return inputs.to(device), labels.to(device)


def train_epoch(model, optimizer, rank, epoch, device):
    model.train()
    for step in range(STEPS):
        time.sleep(0.025)  # reading and augmenting
        inputs, labels = make_batch(100_000 * rank + 1000 * epoch + step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 30 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def score(model, device):
    """Accuracy on the test set, as the leaderboard computes it: one document at a time through the post-processing."""
    model.eval()
    right = seen = 0
    for index in range(TEST_BATCHES):
        inputs, labels = make_batch(9_000_000 + index, device, size=16)
        found = model(inputs).argmax(dim=1)
        time.sleep(0.045)  # post-processing of the answers
        right += (found == labels).sum().item()
        seen += labels.numel()
    return right / seen


def main():
    rank, device = connect()
    torch.manual_seed(7)
    model = DistributedDataParallel(Classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    best = 0.0
    for epoch in range(EPOCHS):
        train_epoch(model, optimizer, rank, epoch, device)
        accuracy = torch.zeros(1, device=device)
        if rank == 0 and epoch == 0:
            print("scoring the test set", flush=True)
            started = time.monotonic()
            accuracy.fill_(score(model.module, device))
            print(f"scored in {time.monotonic() - started:.1f} s", flush=True)
        dist.broadcast(accuracy, src=0)
        best = max(best, accuracy.item())
        if best > 0.999:
            break
    print(f"rank {rank} done, best accuracy {best:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
