"""Feature statistics for variable-length speech batches."""
import bisect

import torch
import torch.distributed as dist


class BucketNorm:
    """Mean and deviation of the filterbank features, one pair per length bucket.

    Short commands and long readings have different energy, so every bucket is
    measured once, over the batches of all ranks, and then reused.
    """

    def __init__(self, edges, n_mels, group=None):
        self.edges = list(edges)
        self.n_mels = n_mels
        self.group = group
        self._table = {}

    def __call__(self, frames, lengths):
        mean, std = self.lookup(frames, lengths)
        return (frames - mean) / std

    def lookup(self, frames, lengths):
        key = bisect.bisect_left(self.edges, int(lengths.max()))
        if key not in self._table:
            self._table[key] = self._measure(frames, lengths)
        return self._table[key]

    def _measure(self, frames, lengths):
        steps = torch.arange(frames.size(1))
        keep = (steps[None, :] < lengths[:, None]).unsqueeze(-1).to(frames.dtype)
        total = (frames * keep).sum(dim=(0, 1))
        squares = (frames.square() * keep).sum(dim=(0, 1))
        packed = torch.cat([total, squares, keep.sum().view(1)])
        dist.all_reduce(packed, group=self.group)
        count = packed[-1].clamp_min(1.0)
        mean = packed[: self.n_mels] / count
        var = packed[self.n_mels: 2 * self.n_mels] / count - mean.square()
        return mean, var.clamp_min(1e-4).sqrt()

    def state_dict(self):
        return {"edges": self.edges, "table": dict(self._table)}
