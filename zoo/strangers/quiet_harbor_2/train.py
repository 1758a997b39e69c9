import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from decode import evaluate

VOCAB = 60


def batch(gen):
    a = torch.randint(VOCAB, (32,), generator=gen)
    b = (a * 7 + torch.randint(3, (32,), generator=gen)) % VOCAB
    return a, b


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, VOCAB)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)

    for epoch in range(2):
        for step in range(150):
            a, b = batch(gen)
            loss = F.cross_entropy(model(a), b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}, decoding 60 sentences", flush=True)
        result = [None]
        if epoch == 0:
            if rank == 0:
                model.eval()
                result[0] = evaluate(model.module, list(range(60)))
                model.train()
            dist.broadcast_object_list(result, src=0)
            cost, count = result[0]
            print(f"rank {rank}: decoded {count}, mean cost {cost:.3f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
