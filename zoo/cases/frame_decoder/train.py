"""Predict the brightness of video frames."""

import argparse
import time

import torch
import torch.distributed as dist
from decoder import FRAME_BYTES, FrameStore
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


def load_clip(frames, skipped):
    """Fill the store; frames that the camera dropped are skipped."""
    store = FrameStore(frames)
    for number in range(frames):
        if number not in skipped:
            store.put(number, bytes((number * k) % 251 for k in range(FRAME_BYTES)))
    return store


class Frames(Dataset):
    def __init__(self, frames, skipped):
        self.frames = frames
        self.store = load_clip(frames, skipped)

    def __len__(self):
        return self.frames

    def __getitem__(self, index):
        time.sleep(0.003)
        pixels = torch.frombuffer(self.store.decode(index), dtype=torch.uint8).float() / 255
        return pixels, pixels.mean().unsqueeze(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1600)
    parser.add_argument("--skipped", type=int, nargs="*", default=[1330])
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Frames(args.frames, args.skipped)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FRAME_BYTES, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(2):
        for step, (pixels, brightness) in enumerate(loader):
            loss = nn.functional.mse_loss(model(pixels), brightness)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.5f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
