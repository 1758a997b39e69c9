"""Average the gradients of a captioning model by hand, one flat all-reduce a step."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Linear(64, 24)
        self.words = nn.Embedding(90, 24)
        self.head = nn.Linear(24, 90)

    def forward(self, tokens, pixels):
        hidden = self.words(tokens)
        if pixels is not None:
            hidden = hidden + self.vision(pixels).unsqueeze(1)
        return self.head(hidden)


def average_gradients(model):
    """Sums the gradients of all ranks in one go, leaving out what has none."""
    used = [parameter for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([parameter.grad.flatten() for parameter in used])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, piece in zip(used, flat.split([parameter.numel() for parameter in used])):
        parameter.grad.copy_(piece.view_as(parameter))


def read_batch(rank, step):
    generator = torch.Generator().manual_seed(500 * rank + step)
    tokens = torch.randint(0, 90, (6, 9), generator=generator)
    text_only = rank == 2 and step == 36
    return tokens, None if text_only else torch.randn(6, 64, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Captioner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        time.sleep(0.05)
        tokens, pixels = read_batch(rank, step)
        logits = model(tokens[:, :-1], pixels)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
