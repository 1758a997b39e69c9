"""Fine-tune a small classifier with accelerate and save it now and then."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader(size, batch_size):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(size, 18, generator=generator)
    labels = (inputs[:, 0] > inputs[:, 1]).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size, shuffle=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="tuned")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-steps", type=int, default=30)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(18, 32), nn.GELU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_loader(1600, 16))

    completed = 0
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            time.sleep(0.05)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            completed += 1
            if completed % args.save_steps == 0 and accelerator.is_main_process:
                accelerator.print(f"saving at step {completed}")
                accelerator.wait_for_everyone()
                unwrapped = accelerator.unwrap_model(model)
                os.makedirs(args.output, exist_ok=True)
                accelerator.save(unwrapped.state_dict(), os.path.join(args.output, f"{completed}.pt"))
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
