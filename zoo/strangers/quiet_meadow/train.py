import argparse
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import bpe


class Windows(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.mix(self.emb(ids))[0])


def prepare(path, n_merges, seq):
    if path.exists():
        return torch.load(path)
    t0 = time.time()
    print("preparing corpus", flush=True)
    _, seqs = bpe.learn(bpe.corpus(), n_merges)
    vocab = {t: i for i, t in enumerate(sorted({t for s in seqs for t in s}))}
    flat = torch.tensor([vocab[t] for s in seqs for t in s])
    data = {"vocab": len(vocab), "rows": flat[: len(flat) // seq * seq].view(-1, seq)}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(data, path)
    print(f"corpus ready after {time.time() - t0:.0f}s: {tuple(data['rows'].shape)}", flush=True)
    return data


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", default="cache")
    ap.add_argument("--merges", type=int, default=120)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--rows", type=int, default=2000)
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    set_seed(3)
    with accelerator.main_process_first():
        data = prepare(Path(args.cache) / "corpus.pt", args.merges, seq=33)

    rows = data["rows"][: args.rows]
    cut = len(rows) * 9 // 10
    model = TinyLM(data["vocab"])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    train = DataLoader(Windows(rows[:cut]), batch_size=16)
    valid = DataLoader(Windows(rows[cut:]), batch_size=16)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)

    for epoch in range(args.epochs):
        model.train()
        for step, ids in enumerate(train):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        model.eval()
        scores = []
        with torch.no_grad():
            for ids in valid:
                logits = model(ids[:, :-1])
                hit = (logits.argmax(-1) == ids[:, 1:]).float().mean(-1)
                scores.append(accelerator.gather_for_metrics(hit))
        accelerator.print(f"epoch {epoch} accuracy {torch.cat(scores).mean():.3f} over {sum(map(len, scores))} rows", flush=True)

    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), Path(args.cache) / "model.pt")
    accelerator.free_memory(model, optimizer, train, valid)
    accelerator.end_training()


if __name__ == "__main__":
    main()
