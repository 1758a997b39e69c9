import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import conf


class Source:
    def __init__(self, cfg, seed):
        self.noise = cfg.noise
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n=32):
        x = torch.randn(n, 20, generator=self.gen)
        y = x[:, :4].prod(-1) + self.noise * torch.randn(n, generator=self.gen)
        return x, y


def open_source(cfg, phase, rank):
    name = "easy" if phase == "easy" else f"{phase}_{rank}"
    return Source(cfg.sources.select(name), seed=rank)


@conf.main(config="base.yaml")
def run(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dim = cfg.model.dim
    model = DDP(nn.Sequential(nn.Linear(20, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1)))
    opt = torch.optim.SGD(model.parameters(), cfg.optim.lr, momentum=cfg.optim.momentum)
    phases = list(cfg.curriculum.phases)
    source = open_source(cfg, phases.pop(0), rank)

    for step in range(cfg.steps):
        if phases and step == cfg.curriculum.switch_at:
            if rank == 0:
                print(f"step {step}: next curriculum phase '{phases[0]}'", flush=True)
            source = open_source(cfg, phases.pop(0), rank)
        x, y = source.batch()
        loss = F.mse_loss(model(x).squeeze(-1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
