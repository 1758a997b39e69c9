import argparse
import pathlib
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Uploader(threading.Thread):
    """Copies finished files to the slow share; ends after what it was given."""

    def __init__(self, target):
        super().__init__(name="uploader")
        self.target = target
        self.todo = queue.Queue()

    def run(self):
        while (item := self.todo.get()) is not None:
            name, blob = item
            for part in range(8):
                time.sleep(0.5)
                with open(self.target / name, "ab") as out:
                    out.write(blob[part::8])


def train_team(group, rank, steps):
    torch.manual_seed(2)
    model = DDP(nn.Linear(16, 3), process_group=group)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(64, 16, generator=gen)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        opt.step()
        time.sleep(0.05)
    return model.module


def judge_team(group, rank, model, rounds):
    scores = []
    for index in range(rounds):
        gen = torch.Generator().manual_seed(1000 * rank + index)
        x = torch.randn(256, 16, generator=gen)
        with torch.no_grad():
            hits = (model(x).argmax(1) == x[:, :3].argmax(1)).float().mean().view(1)
        if rank == 3:
            time.sleep(0.4)
        dist.all_reduce(hits, group=group)
        scores.append(hits.item() / 2)
    return sum(scores) / len(scores)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    makers, judges = dist.new_group([0, 1]), dist.new_group([2, 3])
    uploader = Uploader(args.workdir) if rank in (0, 3) else None
    if uploader:
        uploader.start()
    model = nn.Linear(16, 3)
    for cycle in range(2):
        if rank == 0:
            print(f"cycle {cycle}: makers at work", flush=True)
        if rank < 2:
            model.load_state_dict(train_team(makers, rank, 110).state_dict())
        flat = nn.utils.parameters_to_vector(model.parameters()).detach()
        dist.broadcast(flat, src=0)
        nn.utils.vector_to_parameters(flat, model.parameters())
        verdict = [judge_team(judges, rank, model, 14)] if rank > 1 else [None]
        dist.broadcast_object_list(verdict, src=2)
        if uploader:
            uploader.todo.put((f"cycle{cycle}.{rank}.bin", flat.numpy().tobytes()))
    if uploader:
        uploader.todo.put(None)
    dist.destroy_process_group()
    print(f"[{rank}] accuracy {verdict[0]:.3f}", flush=True)


if __name__ == "__main__":
    main()
