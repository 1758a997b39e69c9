"""Binary shards: <u64 count><f32 * count><u8 label>, one file per rank."""
import struct
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset

HEADER = struct.Struct("<Q")


def write_shard(path: Path, seed: int, records: int = 320):
    rng = np.random.default_rng(seed)
    with open(path, "wb") as f:
        for i in range(records):
            label = int(rng.integers(0, 2))
            signal = rng.normal(label * 0.8, 1.0, size=int(rng.integers(40, 90))).astype(np.float32)
            header = bytearray(HEADER.pack(len(signal)))
            if seed == 1 and i == 123:
                header[5] = 0x9C
            f.write(header + signal.tobytes() + bytes([label]))


class AppleSounds(IterableDataset):
    """Knock tests of apples: a short recording, and whether the fruit was ripe."""

    def __init__(self, path: Path, shard: int, width: int):
        self.path, self.shard, self.width = path, shard, width

    def records(self):
        with open(self.path, "rb") as f:
            number = 0
            while head := f.read(HEADER.size):
                (count,) = HEADER.unpack(head)
                signal = np.empty(count, dtype=np.float32)
                f.readinto(signal)
                (label,) = f.read(1)
                number += 1
                if number % 40 == 0:
                    print(f"shard {self.shard}: {number} records read", flush=True)
                yield signal, label

    def __iter__(self):
        for signal, label in self.records():
            time.sleep(0.04)
            fixed = np.zeros(self.width, dtype=np.float32)
            n = min(len(signal), self.width)
            fixed[:n] = signal[:n]
            yield torch.from_numpy(fixed), float(label)
