"""2-D parallel (data x tensor) regression model; stats are accumulated lazily and flushed per mesh dimension."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from stats import MeshStats


class FeedForward(nn.Module):
    def __init__(self, dim=32, hidden=128):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(FeedForward(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(-1)


def sync_grads(model, group, size):
    for p in model.parameters():
        if p.grad is None:
            continue
        g = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        dist.all_reduce(g, group=group)
        g.div_(size)


def make_batch(dp_rank, step, dim=32, n=24):
    gen = torch.Generator().manual_seed(step * 131 + dp_rank)
    x = torch.randn(n, dim, generator=gen)
    return x, x[:, :4].sum(1).tanh()


def probe_activations(model, x, dp_rank, tp_rank):
    """Half of the probes look at the hidden units (sharded over tp), half at the inputs (sharded over dp)."""
    if (dp_rank + tp_rank) % 2 == 0:
        w = model.layers[0].up.weight.to_local()
        return "tp", "probe", w.abs().quantile(0.9).item()
    return "dp", "probe", x.abs().quantile(0.9).item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    torch.manual_seed(7)
    model = Net()
    for layer in model.layers:
        parallelize_module(layer, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    stats = MeshStats({"dp": dp.get_group(), "tp": tp.get_group()})

    for step in range(1, 121):
        x, y = make_batch(dp.get_local_rank(), step)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        sync_grads(model, dp.get_group(), dp.size())
        opt.step()

        stats.add("dp", "loss", loss.item())
        stats.add("tp", "wnorm", sum(l.up.weight.to_local().norm().item() for l in model.layers))
        if step > 60 and step % 6 == 0:
            quantile = probe_activations(model, x, dp.get_local_rank(), tp.get_local_rank())
            stats.add(*quantile)
        opt.zero_grad()
        if step % 30 == 0:
            if rank == 0:
                print(f"step {step}: flushing stats", flush=True)
            out = stats.flush()
            if rank == 0:
                print(f"step {step} " + " ".join(f"{k}={v:.3f}" for k, v in sorted(out.items())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
