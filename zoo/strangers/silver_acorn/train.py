"""Sentence embeddings with a margin loss on (anchor, positive, negative)."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, WORDS, DIM = 500, 10, 24


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, 32, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, DIM))

    def forward(self, docs):
        return self.mlp(self.words(docs))


class TripletSource:
    def __init__(self, shard, batch=16):
        self.gen = torch.Generator().manual_seed(1000 + shard)
        self.shard, self.batch, self.served = shard, batch, 0

    def _docs(self):
        return torch.randint(VOCAB, (self.batch, WORDS), generator=self.gen)

    def __iter__(self):
        while True:
            self.served += 1
            anchor = self._docs()
            positive = anchor.clone()
            # the positive is the anchor with two words replaced
            positive[:, :2] = torch.randint(VOCAB, (self.batch, 2), generator=self.gen)
            if self.shard == 1 and self.served == 40:
                positive[5] = anchor[5]
            yield anchor, positive, self._docs()


def margin_loss(a, p, n, margin=0.5):
    d_pos = torch.sqrt((a - p).pow(2).sum(-1))
    d_neg = torch.sqrt((a - n).pow(2).sum(-1))
    return torch.relu(d_pos - d_neg + margin).mean()


def main(steps=240):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(77)
    model = DDP(Encoder())
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    source = iter(TripletSource(rank))
    smooth = None
    for step in range(1, steps + 1):
        anchor, positive, negative = next(source)
        if step % 10 == 0:
            shown = "-" if smooth is None else f"{smooth:.4f}"
            print(f"rank {rank} step {step} smoothed loss {shown}", flush=True)
        both = model(torch.cat([anchor, positive, negative]))
        a, p, n = both.chunk(3)
        loss = margin_loss(a, p, n)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        time.sleep(0.07)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
