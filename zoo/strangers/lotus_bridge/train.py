import argparse
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

NOISE = {0: 1.2, 1: 0.0, 2: 0.9}


class SiteData(Dataset):
    """Measurements of one site; every process trains on the site it is responsible for."""

    def __init__(self, site, n=6400):
        g = torch.Generator().manual_seed(100 + site)
        w = torch.linspace(-1, 1, 24)
        self.x = torch.randn(n, 24, generator=g)
        self.y = self.x @ w + NOISE.get(site, 0.5) * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class EarlyStopper:
    def __init__(self, target, patience=5, momentum=0.8):
        self.target, self.patience, self.momentum = target, patience, momentum
        self.value, self.good = None, 0

    def update(self, loss):
        self.value = loss if self.value is None else self.momentum * self.value + (1 - self.momentum) * loss
        self.good = self.good + 1 if self.value < self.target else 0
        return self.good >= self.patience


def evaluate(accelerator, model, loader):
    model.eval()
    errors = []
    with torch.no_grad():
        for i, (x, y) in enumerate(loader):
            if i == 5:
                return torch.cat(errors).mean().item()
            err = (model(x).squeeze(-1) - y).abs()
            errors.append(accelerator.gather(err))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", type=float, default=0.25)
    ap.add_argument("--out", default=tempfile.mkdtemp(prefix="sites"))
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(5)
    loader = DataLoader(SiteData(accelerator.process_index), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(24, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.008)
    model, optimizer = accelerator.prepare(model, optimizer)

    stopper = EarlyStopper(args.target)
    for step, (x, y) in enumerate(loader):
        model.train()
        loss = F.mse_loss(model(x).squeeze(-1), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            accelerator.print(f"step {step} loss {loss.item():.3f}", flush=True)
        if stopper.update(loss.item()):
            print(f"[{accelerator.process_index}] target reached at step {step}", flush=True)
            break

    accelerator.wait_for_everyone()
    mae = evaluate(accelerator, model, loader)
    accelerator.print(f"mae {mae:.3f}", flush=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, "model.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
