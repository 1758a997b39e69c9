"""Satellite tiles: header plus raw counts, decoded ahead of the training loop."""
import collections
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch


class Archive:
    """Headers and counts of one orbit; the reprocessed scenes carry the short header."""

    def __init__(self, orbit, reprocessed=(), bands=4, side=6):
        self.orbit, self.bands, self.side = orbit, bands, side
        self.reprocessed = frozenset(reprocessed)

    def header(self, index):
        head = {"orbit": self.orbit, "scene": index, "offset": 12.0}
        if index in self.reprocessed:
            head["calibration"] = {"gain": 0.04, "version": 2}
        else:
            head["gain"] = 0.05
        return head

    def counts(self, index):
        rng = np.random.default_rng(self.orbit * 100_000 + index)
        return rng.integers(0, 255, (self.bands, self.side, self.side))


class TileReader:
    def __init__(self, archive, depth=3, threads=2):
        self.archive, self.depth = archive, depth
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def decode(self, index):
        head = self.archive.header(index)
        counts = torch.as_tensor(self.archive.counts(index), dtype=torch.float32)
        radiance = (counts - head["offset"]) * head["gain"]
        return radiance.flatten(), (counts[0].mean() > 127).float()

    def stream(self, indices):
        queued = collections.deque()
        for index in indices:
            queued.append(self.pool.submit(self.decode, index))
            if len(queued) > self.depth:
                yield queued.popleft().result()
        while queued:
            yield queued.popleft().result()


def grouped(stream, k):
    rows = []
    for row in stream:
        rows.append(row)
        if len(rows) == k:
            xs, ys = zip(*rows)
            yield torch.stack(xs), torch.stack(ys).unsqueeze(1)
            rows = []
