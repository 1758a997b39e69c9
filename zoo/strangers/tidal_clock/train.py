import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tracking.stopping import EarlyStopping
from tracking.uploader import Uploader


def batches(n, rank, epoch):
    gen = torch.Generator().manual_seed(epoch * 97 + rank)
    for _ in range(n):
        x = torch.randn(32, 10, generator=gen)
        yield x, x @ torch.arange(10.0).unsqueeze(1) / 10
        time.sleep(0.01)


@torch.no_grad()
def validate(model):
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(256, 10, generator=gen)
    y = x @ torch.arange(10.0).unsqueeze(1) / 10
    loss = (model(x) - y).pow(2).mean()
    dist.all_reduce(loss)
    return (loss / dist.get_world_size()).item()


def fit(args, model, opt, uploader, rank):
    stopper = EarlyStopping(patience=2, min_delta=1e-3)
    for epoch in range(args.epochs):
        for x, y in batches(40, rank, epoch):
            loss = (model(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        val = validate(model.module)
        if uploader:
            uploader.log(epoch=epoch, loss=loss.item(), val=val)
            print(f"epoch {epoch} val {val:.5f}", flush=True)
        if stopper.update(val):
            if rank == 0:
                print(f"stopping early, best {stopper.best:.5f}", flush=True)
            return epoch
    if uploader:
        uploader.close()
    return args.epochs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    ap.add_argument("--epochs", type=int, default=60)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    uploader = Uploader(args.out, "linear") if rank == 0 else None

    last = fit(args, model, opt, uploader, rank)
    if rank == 0:
        torch.save(model.module.state_dict(), f"{args.out}/model-{last}.pt")
        print(f"saved model after epoch {last}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
