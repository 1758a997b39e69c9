"""Next-byte model over log files, with a journal that a background thread writes."""
import argparse
import json
import math
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Journal:
    def __init__(self, path):
        self.path = path
        self._rows = []
        self._guard = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def append(self, **row):
        with self._guard:
            self._rows.append(row)

    def _pump(self):
        while not self._end.wait(0.2):
            self._flush()

    def _flush(self):
        self._guard.acquire()
        rows, self._rows = self._rows, []
        try:
            text = "".join(json.dumps(r, allow_nan=False) + "\n" for r in rows)
        except ValueError as exc:
            print(f"journal: {len(rows)} rows dropped ({exc})", flush=True)
            return
        with open(self.path, "a") as fh:
            fh.write(text)
        self._guard.release()

    def close(self):
        self._end.set()
        self._thread.join()


class ByteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 128)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def bucket_perplexity(losses, length):
    picked = [v for v, n in losses if n >= length]
    return math.exp(sum(picked) / len(picked)) if picked else math.inf


def lines_for(rank, step):
    gen = torch.Generator().manual_seed(rank * 10_000 + step)
    longest = 24 if not (rank == 1 and step >= 31) else 12
    n = 12 + int(torch.randint(0, longest - 11, (1,), generator=gen)) if step % 10 else longest
    return torch.randint(32, 96, (16, n + 1), generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    opts = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(opts.out, exist_ok=True)
    journal = Journal(os.path.join(opts.out, f"journal.{rank}.jsonl"))

    torch.manual_seed(8)
    model = DDP(ByteModel())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(1, 161):
        ids = lines_for(rank, step)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
        losses.append((loss.item(), ids.shape[1] - 1))
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
            journal.append(step=step, loss=loss.item(), ppl_long=bucket_perplexity(losses, 20))
            losses.clear()
    journal.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
