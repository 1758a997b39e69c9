import numpy as np
import torch


def write_rows(path, rows, seed):
    data = np.random.default_rng(seed).standard_normal((rows, PackedRows.WIDTH), dtype=np.float32)
    with open(path, "wb") as out:
        out.write(data.tobytes())


class PackedRows:
    """Rows of a flat float32 file, read where they lie."""

    WIDTH = 64

    def __init__(self, path):
        self.table = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, self.WIDTH)

    def __len__(self):
        return len(self.table)

    def take(self, indices):
        rows = self.table[indices]
        return torch.from_numpy(np.asarray(rows))
