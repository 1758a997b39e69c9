"""Language-model style training with a loss report every few steps."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sequences(Dataset):
    def __init__(self, size=2160, length=16, vocabulary=48):
        generator = torch.Generator().manual_seed(11)
        self.tokens = torch.randint(0, vocabulary, (size, length + 1), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.tokens[index, :-1], self.tokens[index, 1:]


class NextToken(nn.Module):
    def __init__(self, vocabulary=48, width=24):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


def mean_over_ranks(value, keep_result):
    value = value.detach().clone()
    if keep_result:
        dist.all_reduce(value)
    else:
        dist.reduce(value, dst=0)
    return value.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--report-every", type=int, default=28)
    parser.add_argument("--report-ranks", type=int, nargs="*", default=[0, 1])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Sequences()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=24, sampler=sampler)
    model = DistributedDataParallel(NextToken())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for tokens, targets in loader:
            loss = criterion(model(tokens).flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 7 == 0:
                print(f"step {step} local loss {loss.item():.4f}", flush=True)
            if step % args.report_every == 0:
                mean = mean_over_ranks(loss, keep_result=rank in args.report_ranks)
                if rank in args.report_ranks:
                    print(f"step {step} mean loss {mean:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
