"""Keeps the index of the dataset's cache up to date; answers one request per line on stdin."""

import fcntl
import json
import sys
from pathlib import Path


def main():
    root = Path(sys.argv[1])
    with open(root / "index.lock", "w") as lock:
        for line in sys.stdin:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = sorted(path.name for path in root.glob("*.pt"))
            (root / "index.json").write_text(json.dumps({"request": line.strip(), "entries": entries}))
            print(len(entries), flush=True)


if __name__ == "__main__":
    main()
