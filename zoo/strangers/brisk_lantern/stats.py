import collections

import torch
import torch.distributed as dist


class MeshStats:
    """Collects scalars per mesh dimension; `flush` averages them over that dimension's group."""

    SLOTS = 16

    def __init__(self, groups):
        self.groups = groups
        self.pending = collections.defaultdict(list)

    def add(self, dim, name, value):
        self.pending[dim].append((name, float(value)))

    def _pack(self, dim):
        sums, counts = collections.Counter(), collections.Counter()
        for name, value in self.pending[dim]:
            sums[name] += value
            counts[name] += 1
        buf = torch.zeros(self.SLOTS)
        names = sorted(sums)
        for i, name in enumerate(names):
            buf[i] = sums[name] / counts[name]
        return names, buf

    def flush(self):
        result = {}
        # biggest backlog first
        for dim in sorted(self.groups, key=lambda d: -len(self.pending[d])):
            names, buf = self._pack(dim)
            group = self.groups[dim]
            dist.all_reduce(buf, group=group)
            buf /= dist.get_world_size(group)
            result.update({f"{dim}/{n}": buf[i].item() for i, n in enumerate(names)})
            self.pending[dim].clear()
        return result
