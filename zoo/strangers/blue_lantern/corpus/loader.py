import torch

from .decode import SampleError, decode


class BatchError(RuntimeError):
    pass


def collate(lines, first):
    try:
        samples = [decode(line, first + i) for i, line in enumerate(lines)]
    except SampleError as err:
        raise BatchError(f"batch at line {first}: {err}") from err
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.tensor(ys)


def batches(path, rank, world, size=8):
    with open(path) as f:
        lines = f.readlines()[rank::world]
    for first in range(0, len(lines) - size + 1, size):
        yield collate(lines[first:first + size], first)
