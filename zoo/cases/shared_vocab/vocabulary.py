"""The vocabulary that all jobs of the machine share, guarded by a lock file."""

import json
from pathlib import Path

from filelock import FileLock


def load(root):
    path = Path(root) / "vocabulary.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps({f"token-{n}": n for n in range(64)}))
        return json.loads(path.read_text())
