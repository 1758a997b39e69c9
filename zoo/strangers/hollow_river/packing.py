import random

import torch
from torch.utils.data import IterableDataset, get_worker_info

# domain -> (documents, shortest, longest)
DOMAINS = {"books": (60, 200, 400), "wiki": (60, 180, 420), "forum": (60, 120, 300)}


class PackedDocs(IterableDataset):
    """Concatenates the documents of one domain and cuts them into blocks of `block` + 1 tokens."""

    def __init__(self, domain, block, vocab, seed=0):
        self.domain, self.block, self.vocab, self.seed = domain, block, vocab, seed

    def documents(self):
        count, lo, hi = DOMAINS[self.domain]
        rng = random.Random(f"{self.domain}-{self.seed}")
        for _ in range(count):
            length, cur = rng.randint(lo, hi), rng.randrange(self.vocab)
            doc = []
            for _ in range(length):
                cur = (cur * 5 + rng.choice((1, 1, 1, 2))) % self.vocab
                doc.append(cur)
            yield doc

    def __iter__(self):
        assert get_worker_info() is None, "packing is sequential"
        buf = []
        for doc in self.documents():
            buf.extend(doc)
            while len(buf) > self.block:
                chunk, buf = buf[: self.block + 1], buf[self.block :]
                t = torch.tensor(chunk)
                yield t[:-1], t[1:]
