"""convert.py RAW OUT: turn one raw shard into a tensor file."""
import os
import struct
import sys

import torch

MAGIC = b"SHD1"


def main():
    raw, out = sys.argv[1:3]
    lock = out + ".lock"
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    with open(raw, "rb") as f:
        magic, n = struct.unpack("<4sI", f.read(8))
        if magic != MAGIC:
            sys.exit(3)
        values = struct.unpack(f"<{n}f", f.read(4 * n))
    torch.save(torch.tensor(values).view(-1, 8), out)
    os.unlink(lock)


if __name__ == "__main__":
    main()
