import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim=32, hidden=128):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        return self.head(x + self.w2(F.relu(self.w1(x))))


def sync_gradients(model, dp_group, dp_size):
    for p in model.parameters():
        grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(grad, group=dp_group)
        grad.div_(dp_size)


def gather_stats(mesh, loss, grad_norm):
    """Loss is averaged over data-parallel peers, the gradient norm over tensor-parallel ones."""
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    diagonal = mesh.get_local_rank("dp") == mesh.get_local_rank("tp")
    if diagonal:
        dist.all_reduce(loss, group=dp)
        dist.all_reduce(grad_norm, group=tp)
    else:
        dist.all_reduce(grad_norm, op=dist.ReduceOp.SUM, group=tp)
        dist.all_reduce(loss, op=dist.ReduceOp.SUM, group=dp)
    return loss.item() / mesh["dp"].size(), grad_norm.sqrt().item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize_module(FeedForward(), mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    g = torch.Generator().manual_seed(10 + mesh.get_local_rank("dp"))
    for step in range(60):
        x = torch.randn(16, 32, generator=g)
        y = x[:, :4].argmax(1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        sync_gradients(model, mesh.get_group("dp"), mesh["dp"].size())
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} local loss {loss.item():.4f}", flush=True)
        if step == 40:
            if rank == 0:
                print("collecting statistics", flush=True)
            local = model.w1.weight.grad.to_local()
            mean, norm = gather_stats(mesh, loss.detach().clone(), local.pow(2).sum())
            if rank == 0:
                print(f"mean loss {mean:.4f} grad norm {norm:.4f}", flush=True)
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
