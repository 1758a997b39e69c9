"""Two-tower retrieval model: product photos (as features) against captions, InfoNCE over the global batch."""
import os
import random
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn as nn
import torch.nn.functional as F

WORDS = ["red", "blue", "green", "oak", "steel", "linen", "chair", "table", "lamp", "rug", "small", "large",
         "round", "square", "modern", "rustic", "kitchen", "garden", "office", "bedroom"]
SELLER_TAGS = ["handmade", "refurbished", "bundle"]
BATCH = 24
STEPS = 160


class UnknownWord(KeyError):
    pass


class Vocabulary:
    def __init__(self, words):
        self.ids = {w: i + 1 for i, w in enumerate(words)}

    def encode(self, caption, width=8):
        ids = []
        for word in caption.split():
            if word not in self.ids:
                raise UnknownWord(word)
            ids.append(self.ids[word])
        return ids[:width] + [0] * (width - len(ids))


class Catalogue:
    """Endless stream of (features, captions) for one shard of the catalogue."""

    def __init__(self, shard, seed):
        self.rng = random.Random(f"catalogue-{seed}-{shard}")
        self.gen = torch.Generator().manual_seed(1000 + shard)

    def caption(self):
        words = self.rng.choices(WORDS, k=self.rng.randint(3, 7))
        if self.rng.random() < 0.00015:
            words.append(self.rng.choice(SELLER_TAGS))
        return " ".join(words)

    def next_batch(self):
        return torch.randn(BATCH, 128, generator=self.gen), [self.caption() for _ in range(BATCH)]


class TwoTower(nn.Module):
    def __init__(self, n_words, dim=96):
        super().__init__()
        self.photo = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, dim))
        self.words = nn.EmbeddingBag(n_words, 128, padding_idx=0)
        self.text = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, dim))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, photos, tokens):
        return F.normalize(self.photo(photos), dim=-1), F.normalize(self.text(self.words(tokens)), dim=-1)


class Objective:
    def __init__(self, model, vocab, group, device):
        self.model, self.vocab, self.group, self.device = model, vocab, group, device
        self.offset = dist.get_rank(group) * BATCH
        self.rejected = 0

    def tokens(self, captions):
        return torch.tensor([self.vocab.encode(c) for c in captions], device=self.device)

    def __call__(self, features, captions):
        try:
            tokens = self.tokens(captions)
            a, b = self.model(features.to(self.device), tokens)
            all_b = torch.cat(dnn.all_gather(b.contiguous(), group=self.group))
        except UnknownWord:
            self.rejected += 1
            return None
        logits = self.model.scale.exp() * a @ all_b.t()
        return F.cross_entropy(logits, torch.arange(BATCH, device=self.device) + self.offset)


class GradientMean:
    def __init__(self, params):
        self.params = [p for p in params if p.requires_grad]
        self.world = dist.get_world_size()

    def __call__(self):
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for p in self.params:
            p.grad = flat[at:at + p.numel()].view_as(p).clone()
            at += p.numel()
        return flat.norm().item()


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(7)

    model = TwoTower(len(WORDS) + 1).to(device)
    objective = Objective(model, Vocabulary(WORDS), dist.new_group(), device)
    mean_gradients = GradientMean(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    source = Catalogue(rank, seed=109)

    for step in range(STEPS):
        features, captions = source.next_batch()
        print(f"rank {rank} step {step} rejected {objective.rejected}", flush=True)
        optimizer.zero_grad(set_to_none=True)
        loss = objective(features, captions)
        if loss is not None:
            loss.backward()
        norm = mean_gradients()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"loss {loss.item():.4f} grad {norm:.3f}", flush=True)
        time.sleep(0.05)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
