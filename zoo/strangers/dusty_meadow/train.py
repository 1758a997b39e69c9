import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from records import PackedRecords

EPOCHS = 3
BATCH = 8


def build(accelerator):
    data = PackedRecords(960, seed=5)
    # re-exported record from the March dump
    data.append_raw(731, "1f 02 9a c4 55 e0 3b")
    loader = DataLoader(data, batch_size=BATCH, num_workers=2, drop_last=True, prefetch_factor=2)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return accelerator.prepare(model, opt, loader)


def main():
    torch.set_num_threads(1)
    set_seed(11)
    accelerator = Accelerator(cpu=True)
    model, opt, loader = build(accelerator)
    accelerator.print(f"{len(loader)} batches per process", flush=True)
    for epoch in range(EPOCHS):
        total = 0.0
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            total += accelerator.reduce(loss.detach(), "mean").item()
            if step % 5 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        accelerator.print(f"epoch {epoch} mean loss {total / len(loader):.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
