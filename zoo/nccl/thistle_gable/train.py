"""A small mixture of experts: dense layers shared by all ranks, expert loads balanced within each expert group."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

VOCAB = 4096
EXPERTS = 8
WIDTH = 64
TOKENS = 256
STEPS = 400
HOT_SHARE = 0.6
PAUSE = 0.05


class Documents:
    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world
        self.generator = torch.Generator().manual_seed(40 + rank)

    def read(self, step: int) -> torch.Tensor:
        tokens = torch.randint(0, VOCAB, (TOKENS,), generator=self.generator)
        number = step * self.world + self.rank
        if number % 911 == 251:  # a table: one cell marker between the words
            tokens[torch.arange(TOKENS) % 5 != 0] = 1029
        return tokens


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("scale", torch.ones(EXPERTS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        choice = tokens % EXPERTS
        mixed = sum(
            expert(hidden) * (choice == index).unsqueeze(1) * self.scale[index]
            for index, expert in enumerate(self.experts)
        )
        return self.head(torch.tanh(mixed)).mean()


def expert_loads(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens % EXPERTS, minlength=EXPERTS).float()


def rebalance(model: Mixture, loads: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Scale every expert by how far the load of its group is from an even one."""
    dist.all_reduce(loads, group=group)
    counts = loads.tolist()
    even = sum(counts) / EXPERTS
    for index, count in enumerate(counts):
        model.scale[index] = min(1.5, max(0.5, even / max(count, 1.0)))


def share_gradients(model: Mixture, world: int) -> None:
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh(device.type, (world // 2, 2), mesh_dim_names=("replica", "expert"))
    group = mesh.get_group("expert")

    torch.manual_seed(5)
    model = Mixture().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    documents = Documents(rank, world)

    for step in range(STEPS):
        tokens = documents.read(step).to(device)
        optimizer.zero_grad()
        loss = (model(tokens) - 0.5).square()
        loss.backward()

        loads = expert_loads(tokens)
        hot = (loads.max() / loads.sum()).item() > HOT_SHARE
        if hot:
            rebalance(model, loads, group)
        share_gradients(model, world)
        optimizer.step()
        if not hot:
            rebalance(model, loads, group)

        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(PAUSE)

    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
