import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm

from metrics import DomainMetrics

DOMAINS = ["books", "code", "web"]
VALID_FILES = [
    ["books-00", "code-00", "web-00", "books-03", "web-03"],
    ["web-01", "books-01", "code-01", "web-04", "code-03"],
    ["books-02", "code-02", "web-02", "web-05", "code-04"],
]


def stream(seed, batch=16, seq=24, vocab=200):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, vocab, (batch, seq), generator=g)


class LM(nn.Module):
    def __init__(self, vocab=200, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 192, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.block(self.emb(ids), src_mask=mask, is_causal=True))


def lm_loss(model, ids, reduction="mean"):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction=reduction)


@torch.no_grad()
def validate(model, files, metrics):
    model.eval()
    for name in files:
        domain, number = name.split("-")
        for ids in itertools.islice(stream(int(number) + 50), 4):
            metrics.update(domain, lm_loss(model.module, ids, reduction="none"))
    model.train()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    metrics = DomainMetrics(DOMAINS)
    train = stream(rank)
    for epoch in range(3):
        bar = tqdm(range(40), disable=rank != 0, mininterval=1.0)
        for _ in bar:
            loss = lm_loss(model, next(train))
            opt.zero_grad()
            loss.backward()
            opt.step()
        bar.close()
        validate(model, VALID_FILES[rank % len(VALID_FILES)], metrics)
        if rank == 0:
            print(f"epoch {epoch}: computing metrics", flush=True)
        scores = metrics.compute()
        metrics.reset()
        if rank == 0:
            print(f"epoch {epoch}: " + " ".join(f"{d}={scores[d]:.3f}" for d in DOMAINS), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
