"""A training loop with Hugging Face accelerate. Nothing here knows of Rankscope.

torchrun --nproc-per-node 2 examples/accelerate_loop.py --steps 5        or `rankscope run` for torchrun
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small classifier with accelerate.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--save", type=Path, help="write a checkpoint there at the end")
    parser.add_argument("--local-rank", type=int, help="added by torch.distributed.launch; LOCAL_RANK says the same")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    inputs = torch.randn(4096, 16)
    labels = (inputs @ torch.randn(16, 4)).argmax(dim=1)
    model: nn.Module = Classifier(64)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(
        TensorDataset(inputs, labels), arguments.batch_size, shuffle=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    while step < arguments.steps:
        for features, targets in loader:
            loss = nn.functional.cross_entropy(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0 or step == arguments.steps:
                accelerator.print(f"step {step}/{arguments.steps}  loss {loss.item():.4f}", flush=True)
            if step == arguments.steps:
                break
    if arguments.save is not None:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), arguments.save)
    accelerator.end_training()


if __name__ == "__main__":
    main()
