"""Three-stage pipeline (fill and drain) for tabular sequences, embedding tied between the first and last stage."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, LENGTH = 300, 128, 32
MICRO, CHUNKS = 8, 3
STEPS = 45


class Stage(nn.Module):
    def __init__(self, index, last):
        super().__init__()
        self.first, self.final = index == 0, index == last
        self.table = nn.Embedding(VOCAB, DIM) if self.first or self.final else None
        self.body = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        h = self.table(x) if self.first else x
        h = h + self.body(h)
        return h @ self.table.weight.t() if self.final else h


class Pipeline:
    def __init__(self, stage, rank, world, device):
        self.stage, self.rank, self.last, self.device = stage, rank, world - 1, device

    def buffer(self):
        return torch.empty(MICRO, LENGTH, DIM, device=self.device)

    def fill(self, tokens):
        saved = []
        for chunk in range(CHUNKS):
            if self.rank == 0:
                x = tokens[chunk]
            else:
                x = self.buffer()
                dist.recv(x, src=self.rank - 1)
                x.requires_grad_()
            y = self.stage(x)
            if self.rank < self.last:
                dist.send(y.detach().contiguous(), dst=self.rank + 1)
            saved.append((x, y))
        return saved

    def drain(self, saved, tokens):
        total = 0.0
        for chunk, (x, y) in enumerate(saved):
            if self.rank == self.last:
                loss = F.cross_entropy(y[:, :-1].reshape(-1, VOCAB), tokens[chunk][:, 1:].reshape(-1)) / CHUNKS
                loss.backward()
                total += loss.item()
            else:
                grad = self.buffer()
                dist.recv(grad, src=self.rank + 1)
                y.backward(grad)
            if self.rank > 0:
                dist.send(x.grad.contiguous(), dst=self.rank - 1)
        return total


class TiedTable:
    """Keeps the two copies of the embedding together; the stages in between have none."""

    def __init__(self, stage, world):
        self.ends = dist.new_group([0, world - 1])
        self.weight = stage.table.weight if stage.table is not None else None
        if self.weight is not None:
            dist.broadcast(self.weight.data, src=0, group=self.ends)

    def sync(self):
        if self.weight is not None:
            dist.all_reduce(self.weight.grad, group=self.ends)


class TokenPriors:
    """Smoothed unigram table, estimated by the stage that computes the loss."""

    def __init__(self, generator, budget_s=9.0):
        self.counts = torch.ones(VOCAB)
        until = time.monotonic() + budget_s
        while time.monotonic() < until:
            sample = torch.randint(0, VOCAB, (20000,), generator=generator)
            self.counts += torch.bincount(sample, minlength=VOCAB)
        self.counts /= self.counts.sum()


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(31)

    stage = Stage(rank, world - 1).to(device)
    tied = TiedTable(stage, world)
    pipeline = Pipeline(stage, rank, world, device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(77)

    for step in range(STEPS):
        tokens = torch.randint(0, VOCAB, (CHUNKS, MICRO, LENGTH), generator=data).to(device)
        if step == 20 and stage.final:
            priors = TokenPriors(torch.Generator().manual_seed(3))
            print(f"rank {rank} priors ready, max {priors.counts.max():.5f}", flush=True)
        optimizer.zero_grad()
        total = pipeline.drain(pipeline.fill(tokens), tokens)
        tied.sync()
        optimizer.step()
        if stage.final and step % 5 == 0:
            print(f"rank {rank} step {step} loss {total:.4f}", flush=True)
        time.sleep(0.03)

    done = torch.ones(1, device=device)
    dist.all_reduce(done)
    print(f"rank {rank} done with {int(done.item())} stages", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
