"""A training engine: averages gradients itself and writes one file per rank."""

import os

import torch
import torch.distributed as dist


class Engine:
    def __init__(self, model, lr, accumulation):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.accumulation = accumulation
        self.micro_steps = 0
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    def __call__(self, *inputs):
        return self.model(*inputs)

    def backward(self, loss):
        (loss / self.accumulation).backward()
        self.micro_steps += 1

    def step(self):
        if self.micro_steps % self.accumulation:
            return
        flat = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for parameter in self.model.parameters():
            parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save_checkpoint(self, folder, tag):
        """Every rank writes its own part; rank 0 marks the checkpoint as the latest."""
        path = os.path.join(folder, tag)
        os.makedirs(path, exist_ok=True)
        torch.save(self.optimizer.state_dict(), os.path.join(path, f"optimizer-{dist.get_rank()}.pt"))
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(self.model.state_dict(), os.path.join(path, "model.pt"))
            with open(os.path.join(folder, "latest"), "w") as file:
                file.write(tag)
