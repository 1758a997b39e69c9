import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MissingAware(nn.Module):
    """Tabular net for lab results. A lab that was not ordered is NaN in the table, as in the source files."""

    def __init__(self, columns, hidden=32):
        super().__init__()
        self.fallback = nn.Parameter(torch.zeros(columns))
        self.net = nn.Sequential(nn.Linear(2 * columns, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, table):
        missing = torch.isnan(table)
        filled = torch.where(missing, self.fallback.expand_as(table), torch.nan_to_num(table))
        return self.net(torch.cat([filled, missing.float()], dim=1)).squeeze(1)


def make_table(rows, columns, seed):
    gen = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, columns, generator=gen)
    target = table[:, 0] - 0.5 * table[:, 1]
    table[torch.rand(rows, columns, generator=gen) < 0.2] = float("nan")
    return TensorDataset(table, target)


def evaluate(accelerator, model, loader):
    model.eval()
    errors = []
    with torch.no_grad():
        for table, target in loader:
            err, _ = accelerator.gather_for_metrics(((model(table) - target).abs(), target))
            errors.append(err)
    model.train()
    return torch.cat(errors).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(17)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = MissingAware(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train = DataLoader(make_table(1990, 12, 1), batch_size=16, shuffle=True)
    held_out = DataLoader(make_table(301, 12, 2), batch_size=16)
    model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
    accelerator.print("training on tables", flush=True)

    for epoch in range(args.epochs):
        running = 0.0
        for table, target in train:
            with accelerator.accumulate(model):
                loss = nn.functional.smooth_l1_loss(model(table), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            running += loss.detach()
            time.sleep(0.02)
        error = evaluate(accelerator, model, held_out)
        accelerator.print(f"epoch {epoch} loss {running.item() / len(train):.4f} mae {error:.4f}", flush=True)
        if accelerator.is_main_process:
            time.sleep(4)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
