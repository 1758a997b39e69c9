"""Train with a progress bar and evaluate at regular intervals."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm


def gather_for_metrics(values):
    everyone = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, values)
    return torch.cat(everyone)


def evaluate(model, inputs, labels):
    with torch.no_grad():
        hits = (model.module(inputs).argmax(dim=1) == labels).float()
    return gather_for_metrics(hits).mean().item()


def make_data(size, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 14, generator=generator)
    return TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--eval-every", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = make_data(2400, seed=1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    held_out = make_data(90, seed=2).tensors
    model = DistributedDataParallel(nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    bar = tqdm(total=args.epochs * len(loader), disable=dist.get_rank() != 0, mininterval=1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            time.sleep(0.05)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update(1)
            if bar.n and bar.n % args.eval_every == 0:
                print(f"evaluating after {bar.n} steps", flush=True)
                accuracy = evaluate(model, *held_out)
                bar.set_postfix(accuracy=f"{accuracy:.3f}")
    bar.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
