"""A small transformer, its parameters sharded over the ranks with FSDP. Nothing here knows of Rankscope.

    torchrun --nproc-per-node 2 examples/fsdp.py --steps 5        or `rankscope run` for torchrun

On GPUs it computes in bfloat16, as one does; on CPUs in float32.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY = 64
CONTEXT = 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        mask = nn.Transformer.generate_square_subsequent_mask(hidden.shape[1], hidden.device, hidden.dtype)
        hidden = hidden + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        output: Tensor = hidden + self.mlp(hidden)
        return output


class Transformer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def shard(model: Transformer, device: torch.device) -> None:
    """Each block by itself, then what is left: a block's parameters are gathered only while it computes."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if device.type == "cuda" else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small transformer with FSDP.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per rank and step")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--local-rank", type=int, help="added by torch.distributed.launch; LOCAL_RANK says the same")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = Transformer(arguments.width, arguments.depth).to(device)
    shard(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = torch.arange(64 * (CONTEXT + 1)).view(64, CONTEXT + 1) * 7 % VOCABULARY
    dataset = TensorDataset(samples.repeat(16, 1))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, arguments.batch_size, sampler=sampler, drop_last=True)

    step = epoch = 0
    while step < arguments.steps:
        sampler.set_epoch(epoch)
        for (tokens,) in loader:
            logits = model(tokens[:, :-1].to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].to(device).flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if dist.get_rank() == 0 and (step % 10 == 0 or step == arguments.steps):
                print(f"step {step}/{arguments.steps}  loss {loss.item():.4f}", flush=True)
            if step == arguments.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
