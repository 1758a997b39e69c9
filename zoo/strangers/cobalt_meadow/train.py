"""Hay yield per meadow with accelerate: accumulation, evaluation, agreed early stop."""
import argparse
import logging
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("meadow")


def meadows(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 9, generator=gen)
    y = (x[:, :2].sum(1) + x[:, 3] * x[:, 4]).unsqueeze(1)
    return TensorDataset(x, y)


def network():
    return nn.Sequential(nn.Linear(9, 48), nn.SiLU(), nn.Linear(48, 24), nn.SiLU(), nn.Linear(24, 1))


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def exhausted(self, local_loss):
        self.bad = 0 if local_loss < self.best * 0.5 else self.bad + 1
        self.best = min(self.best, local_loss)
        return self.bad >= self.limit


def evaluate(accelerator, model, loader):
    model.eval()
    outs, refs = [], []
    with torch.no_grad():
        for x, y in loader:
            out, ref = accelerator.gather_for_metrics((model(x), y))
            outs.append(out)
            refs.append(ref)
    model.train()
    return nn.functional.mse_loss(torch.cat(outs), torch.cat(refs)).item(), len(torch.cat(refs))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    set_seed(4)
    rank = accelerator.process_index
    model = network()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train = DataLoader(meadows(1000, 1), batch_size=8, shuffle=True)
    test = DataLoader(meadows(101, 2), batch_size=8)
    model, opt, train, test = accelerator.prepare(model, opt, train, test)
    patience = Patience(limit=3)

    for epoch in range(8):
        total = 0.0
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            total += loss.item()
            time.sleep(0.05 + 0.03 * (rank == 1))
        mse, count = evaluate(accelerator, model, test)
        if accelerator.is_main_process:
            log.info("epoch %d train %.4f test %.4f on %d meadows", epoch, total / len(train), mse, count)
        if patience.exhausted(total):
            accelerator.set_trigger()
        if accelerator.check_trigger():
            log.info("rank %d stops after epoch %d", rank, epoch)
            break

    accelerator.wait_for_everyone()
    accelerator.save_state(out)
    accelerator.print(f"harvest forecast ready, mse {mse:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
