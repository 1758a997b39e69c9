import random
from pathlib import Path


def write_shards(root, rank, n_shards, rows):
    rng = random.Random(rank)
    folder = Path(root) / f"part{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    for s in range(n_shards):
        with open(folder / f"{s:03d}.txt", "w") as fh:
            for _ in range(rows):
                fh.write(" ".join(f"{rng.gauss(0, 1):.4f}" for _ in range(9)) + "\n")
    return folder


class ShardReader:
    """Reads shards line by line and can be resumed in the middle of one."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.txt"))
        self.shard = 0
        self.row = 0
        self.handle = None

    def read(self):
        if self.handle is None:
            self.handle = open(self.files[self.shard % len(self.files)])
            self.remaining = self.handle.readlines()
            self.row = 0
        values = [float(v) for v in self.remaining[self.row].split()]
        self.row += 1
        if self.row == len(self.remaining):
            self.handle.close()
            self.handle = None
            self.shard += 1
            self.row = 0
        return values

    def state_dict(self):
        return {k: v for k, v in vars(self).items() if k not in ("files", "remaining")}

    def load_state_dict(self, state):
        vars(self).update(state)
