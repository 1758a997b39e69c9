"""Matrix factorisation for a shop; sessions arrive in one stream per rank."""
import argparse
import os
import time

import torch
import torch.distributed as dist


class Table:
    def __init__(self, name, rows, dim, lr=0.05):
        g = torch.Generator().manual_seed(len(name))
        self.name = name
        self.weight = torch.randn(rows, dim, generator=g) * 0.1
        self.delta = torch.zeros(rows, dim)
        self.group = dist.new_group(backend="gloo")
        self.lr = lr
        self.touched = 0

    def rows(self, ids):
        self.touched += ids.unique().numel()
        return self.weight[ids]

    def add(self, ids, grad):
        self.delta.index_add_(0, ids, grad)

    def push(self):
        dist.all_reduce(self.delta, group=self.group)
        self.weight -= self.lr * self.delta / dist.get_world_size()
        self.delta.zero_()
        self.touched = 0


class TableHub:
    """Keeps all tables in agreement; large updates are sent first."""

    def __init__(self, *tables):
        self.tables = list(tables)

    def sync(self):
        for table in sorted(self.tables, key=lambda t: t.touched, reverse=True):
            table.push()


def session_stream(rank, users, items):
    gen = torch.Generator().manual_seed(31 * rank + 1)
    step = 0
    while True:
        n_users, n_items = 64, 20
        if rank == 1 and step == 44:  # catalogue import by one merchant account
            n_users, n_items = 3, 120
        u = torch.randint(0, users, (n_users,), generator=gen)
        i = torch.randint(0, items, (n_items,), generator=gen)
        pick_u = u[torch.randint(0, n_users, (128,), generator=gen)]
        pick_i = i[torch.randint(0, n_items, (128,), generator=gen)]
        yield pick_u, pick_i, torch.rand(128, generator=gen)
        step += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    conf = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])

    users = Table("users", 2000, 16)
    items = Table("items", 800, 16)
    hub = TableHub(users, items)
    stream = session_stream(rank, 2000, 800)
    running = None
    for step in range(conf.steps):
        u, i, y = next(stream)
        eu, ei = users.rows(u), items.rows(i)
        err = (eu * ei).sum(-1) - y
        users.add(u, err[:, None] * ei)
        items.add(i, err[:, None] * eu)
        if step % 4 == 0:
            print(f"[{rank}] step {step} touched users={users.touched} items={items.touched}", flush=True)
        hub.sync()
        mse = err.square().mean()
        running = mse if running is None else 0.9 * running + 0.1 * mse
        time.sleep(0.1)

    dist.all_reduce(running)
    if rank == 0:
        print(f"mse {running.item() / dist.get_world_size():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
