"""Churn model for a telecom, trained with accelerate."""
import argparse
import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--epochs", type=int, default=7)
args = parser.parse_args()


def customers(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 18, generator=g)
    return TensorDataset(x, ((x[:, 0] + x[:, 3] * x[:, 5]) > 0).float())


def score_stream(model, loader):
    """Scores of the whole validation set, one gathered batch after another."""
    model.eval()
    core = accelerator.unwrap_model(model)
    with torch.no_grad():
        for x, y in loader:
            margin = core(x).squeeze(-1)
            yield accelerator.gather_for_metrics((margin, y))
    model.train()


def accuracy(rows):
    hit = n = 0
    for margin, y in rows:
        hit += ((margin > 0) == (y > 0.5)).sum().item()
        n += len(y)
    return hit / n


@accelerator.on_main_process
def export(epoch, rows):
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"scores-{epoch}.jsonl", "w") as f:
        for batch_no, pair in enumerate(rows):
            f.write(json.dumps({"batch": batch_no, "scores": pair[0].tolist()}) + "\n")


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    train = DataLoader(customers(960, 1), batch_size=16, shuffle=True)
    valid = DataLoader(customers(384, 2), batch_size=16)
    model, opt, train, valid = accelerator.prepare(model, opt, train, valid)
    best, warmup = 0.0, 3

    for epoch in range(args.epochs):
        total = 0.0
        for x, y in train:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(-1), y)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            total += loss.item()
            time.sleep(0.08)
        score = accuracy(score_stream(model, valid))
        accelerator.print(f"epoch {epoch} loss {total / len(train):.4f} accuracy {score:.4f}", flush=True)
        if epoch >= warmup and score > best:
            accelerator.print(f"new best in epoch {epoch}", flush=True)
            export(epoch, score_stream(model, valid))
            best = score

    accelerator.wait_for_everyone()
    accelerator.print("finished", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
