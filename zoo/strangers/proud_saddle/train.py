import json
import os
import sys
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def index_corpus(path, n=3000, seconds=14):
    """Builds the n-gram index once; later calls only read it."""
    if not os.path.exists(path):
        begin, table = time.monotonic(), {}
        while time.monotonic() - begin < seconds:
            for i in range(n):
                key = str((i * 7919) % 101)
                table[key] = (table.get(key, 0) + i) % 1000
        with open(path + ".part", "w") as f:
            json.dump(table, f)
        os.replace(path + ".part", path)
    with open(path) as f:
        return json.load(f)


def features(table, n=1150):
    gen = torch.Generator().manual_seed(3)
    keys = torch.randint(0, 101, (n, 6), generator=gen)
    weight = torch.tensor([table.get(str(k), 0) / 1000 for k in range(101)])
    x = weight[keys]
    y = (keys.sum(1) % 2 == 0).long()
    scale = torch.ones(n, 1)
    scale[600] = 1e38  # one row comes in other units
    return TensorDataset(x * scale, y)


def main():
    torch.set_num_threads(1)
    set_seed(5)
    accelerator = Accelerator(cpu=True)
    path = os.path.join(sys.argv[1], "index.json")
    accelerator.print("indexing on the main process first", flush=True)
    with accelerator.main_process_first():
        table = index_corpus(path)
    loader = DataLoader(features(table), batch_size=8, num_workers=1)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(2):
        skipped = correct = seen = 0
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            usable = accelerator.reduce(torch.isfinite(loss.detach()).float(), "sum") == accelerator.num_processes
            usable = usable and accelerator.reduce(loss.detach(), "mean").item() < 50
            if not usable:
                skipped += 1
                continue
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            guess, truth = accelerator.gather_for_metrics((logits.argmax(-1), y))
            correct += (guess == truth).sum().item()
            seen += len(truth)
            if step % 20 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        accelerator.print(f"epoch {epoch} accuracy {correct / seen:.3f}, {skipped} batches skipped", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
