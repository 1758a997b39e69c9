"""Snow load regression from weather series (accelerate)."""
import argparse
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Plateau:
    """Keeps the best weights; when the validation stands still, goes back to them with a smaller step."""

    def __init__(self, accelerator, model, optimizer, folder: Path, patience: int, factor: float):
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.best_file = folder / "best.pt"
        self.patience, self.factor = patience, factor
        self.best, self.waited = float("inf"), 0

    def check(self, value: float, round_: int) -> None:
        if value < self.best - 1e-3:
            self.best, self.waited = value, 0
            state = self.accelerator.unwrap_model(self.model).state_dict()
            self.accelerator.save(state, self.best_file)
            return
        self.waited += 1
        if self.waited < self.patience:
            return
        self.accelerator.print(f"plateau in round {round_}: best {self.best:.4f}, now {value:.4f}", flush=True)
        self.waited = 0
        for group in self.optimizer.param_groups:
            group["lr"] *= self.factor
        if self.accelerator.is_main_process and self.best_file.exists():
            self.accelerator.unwrap_model(self.model).load_state_dict(torch.load(self.best_file))
        self.accelerator.wait_for_everyone()


def weather(count: int, seed: int):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=gen)
    y = (x[:, :3].sum(1) * x[:, 3].tanh() + 0.3 * torch.randn(count, generator=gen)).unsqueeze(1)
    return TensorDataset(x, y)


def slow_collate(samples):
    time.sleep(0.04)  # stands in for reading the station's files
    return torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])


@torch.no_grad()
def validate(accelerator, model, loader) -> float:
    model.eval()
    errors = []
    for x, y in loader:
        errors.append(accelerator.gather_for_metrics((model(x) - y).square()))
    model.train()
    return torch.cat(errors).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work-dir", type=Path, default=Path("/tmp/snow"))
    ap.add_argument("--rounds", type=int, default=19)
    ap.add_argument("--lr", type=float, default=0.08)
    args = ap.parse_args()
    args.work_dir.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    set_seed(9)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    train_loader = DataLoader(weather(480, 1), batch_size=8, shuffle=True, collate_fn=slow_collate)
    val_loader = DataLoader(weather(96, 2), batch_size=16)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    plateau = Plateau(accelerator, model, optimizer, args.work_dir, patience=3, factor=0.5)
    loss_fn = nn.MSELoss()
    for round_ in range(args.rounds):
        for x, y in train_loader:
            loss = loss_fn(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        value = validate(accelerator, model, val_loader)
        accelerator.print(f"round {round_}: validation {value:.4f}", flush=True)
        plateau.check(value, round_)
    accelerator.end_training()


if __name__ == "__main__":
    main()
