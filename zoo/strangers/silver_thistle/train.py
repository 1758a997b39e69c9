import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from metric.pairs import Pairs
from metric.siamese import Siamese, contrastive

DIM = 24


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Pairs(dim=DIM)
    model = DDP(Siamese(DIM, 8))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(4):
        if epoch == 1:
            data.extend(torch.randn(80, DIM, generator=torch.Generator().manual_seed(4)))
        sampler = DistributedSampler(data, shuffle=False)
        loader = DataLoader(data, batch_size=16, sampler=sampler)
        if rank == 0:
            print(f"epoch {epoch} begins, {len(data)} pairs", flush=True)
        total = 0.0
        for step, (left, right, label) in enumerate(loader):
            distance = model(left, right)
            loss = contrastive(distance, label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        mean = torch.tensor(total / (step + 1))
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean.item() / dist.get_world_size():.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
