"""Click-through model. The last rank does not train: it scores the snapshots that the trainers leave behind."""
import argparse
import glob
import os
import queue
import shutil
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def batch(seed, n=32):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    y = (x[:, :3].sum(1) > 0).float()
    return x, y


def build():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))


class SnapshotWriter(threading.Thread):
    """Writes state dicts in the background so that training need not wait."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.todo = folder, queue.Queue()
        self.start()

    def run(self):
        while True:
            item = self.todo.get()
            if item is None:
                return
            step, state = item
            time.sleep(1.0)
            path = os.path.join(self.folder, f"snap-{step:05d}.pt")
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

    def put(self, step, model):
        self.todo.put((step, {k: v.clone() for k, v in model.state_dict().items()}))

    def close(self):
        self.todo.put(None)
        self.join()


def trainer(args, rank, group):
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    writer = SnapshotWriter(args.folder) if rank == 0 else None
    for step in range(1, args.steps + 1):
        x, y = batch(step * 10 + rank)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        opt.zero_grad()
        loss.backward()
        handles = [dist.all_reduce(p.grad, group=group, async_op=True) for p in model.parameters()]
        for h, p in zip(handles, model.parameters()):
            h.wait()
            p.grad /= dist.get_world_size(group)
        opt.step()
        time.sleep(0.04)
        if step % args.every == 0:
            if writer:
                writer.put(step, model)
            print(f"[{rank}] step {step} loss {loss.item():.3f}", flush=True)
    if writer:
        writer.close()
        open(os.path.join(args.folder, "finished"), "w").close()


def scorer(args):
    seen, model = {}, build()
    while True:
        over = os.path.exists(os.path.join(args.folder, "finished"))
        fresh = sorted(p for p in glob.glob(os.path.join(args.folder, "snap-*.pt")) if p not in seen)
        if not fresh:
            if over:
                break
            time.sleep(2.0)
            continue
        model.load_state_dict(torch.load(fresh[-1]))
        right = 0.0
        with torch.no_grad():
            for i in range(40):
                x, y = batch(900_000 + i)
                right += ((model(x)[:, 0] > 0).float() == y).float().mean().item()
                time.sleep(0.08)
        for p in fresh:
            seen[p] = right / 40
        print(f"scored {os.path.basename(fresh[-1])}: accuracy {right / 40:.3f}", flush=True)
    return max(seen.values())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folder", default=None)
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--every", type=int, default=60)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [args.folder or tempfile.mkdtemp(prefix="ctr-")]
    dist.broadcast_object_list(box, src=0)
    args.folder = box[0]
    trainers = dist.new_group(list(range(world - 1)))
    print(f"[{rank}] takes its role", flush=True)
    best = torch.zeros(1)
    if rank == world - 1:
        best += scorer(args)
    else:
        trainer(args, rank, trainers)
    dist.broadcast(best, src=world - 1)
    if rank == 0:
        print(f"best accuracy {best.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
