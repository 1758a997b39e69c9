import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.randn(12, 4, generator=torch.Generator().manual_seed(99))
    return TensorDataset(x, (x @ w).argmax(1))


class StopRule:
    """The main process decides, everybody follows."""

    def __init__(self, accelerator, patience):
        self.accelerator = accelerator
        self.patience = patience
        self.best = 0.0
        self.bad = 0

    def should_stop(self, score):
        flag = torch.zeros(1)
        if self.accelerator.is_main_process:
            if score > self.best + 0.02:
                self.best, self.bad = score, 0
            else:
                self.bad += 1
            flag.fill_(float(self.bad >= self.patience))
            dist.broadcast(flag, src=0)
        else:
            dist.broadcast(flag, src=0)
        return bool(flag.item())


def evaluate(accelerator, model, loader):
    model.eval()
    preds, labels = [], []
    with torch.no_grad():
        for x, y in loader:
            p, t = accelerator.gather_for_metrics((model(x).argmax(1), y))
            preds.append(p)
            labels.append(t)
    model.train()
    preds, labels = torch.cat(preds), torch.cat(labels)
    return (preds == labels).float().mean().item(), len(labels)


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    torch.set_num_threads(1)
    train_loader = DataLoader(make_data(1013, 1), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    eval_loader = DataLoader(make_data(205, 2), batch_size=16)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)

    rule = StopRule(accelerator, patience=2)
    for epoch in range(40):
        for step, (x, y) in enumerate(train_loader):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.process_index == 1 and step % 8 == 0:
                time.sleep(0.1)
        accuracy, n = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch} accuracy {accuracy:.3f} on {n}", flush=True)
        if rule.should_stop(accuracy):
            accelerator.print("no improvement, stopping", flush=True)
            break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
