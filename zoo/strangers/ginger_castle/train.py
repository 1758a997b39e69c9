"""Room layouts of castles: the wings were digitised by different teams, so the shards are of very different size."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

ROOMS = {0: 620, 1: 430, 2: 210}
BATCH = 4


class TallyHook(JoinHook):
    def __init__(self, tally):
        self.tally = tally

    def main_hook(self):
        dist.all_reduce(torch.zeros(1), group=self.tally.group)

    def post_hook(self, is_last_joiner: bool):
        # the last one to finish knows the final number
        common = torch.tensor([dist.get_rank() if is_last_joiner else -1])
        dist.all_reduce(common, op=dist.ReduceOp.MAX, group=self.tally.group)
        dist.broadcast(self.tally.count, src=int(common), group=self.tally.group)


class Tally(Joinable):
    """How many rooms all ranks together have seen so far."""

    def __init__(self):
        super().__init__()
        self.group = dist.group.WORLD
        self.count = torch.zeros(1)

    def __call__(self, rooms: int):
        Join.notify_join_context(self)
        seen = torch.tensor([float(rooms)])
        dist.all_reduce(seen, group=self.group)
        self.count += seen

    def join_hook(self, **kwargs) -> JoinHook:
        return TallyHook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return self.group


def rooms(rank: int, epoch: int):
    gen = torch.Generator().manual_seed(31 * rank + epoch)
    left = ROOMS[rank]
    while left > 0:
        n = min(BATCH, left)
        left -= n
        time.sleep(0.02)
        x = torch.rand(n, 6, generator=gen)
        yield x, (x[:, :2].prod(1) + x[:, 2:4].prod(1)).unsqueeze(1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=3e-3)
    tally = Tally()
    print(f"{ROOMS[rank]} rooms on rank {rank}", flush=True)

    for epoch in range(3):
        tally.count.zero_()
        steps, last = 0, 0.0
        with Join([model, opt, tally]):
            for x, y in rooms(rank, epoch):
                loss = nn.functional.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                tally(len(x))
                steps, last = steps + 1, loss.item()
        print(f"epoch {epoch} rank {rank}: {steps} steps, loss {last:.4f}, "
              f"{int(tally.count)} of {sum(ROOMS.values())} rooms", flush=True)

    first = next(model.parameters()).detach().flatten()[0].clone()
    lowest, highest = first.clone(), first.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert torch.equal(lowest, highest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
