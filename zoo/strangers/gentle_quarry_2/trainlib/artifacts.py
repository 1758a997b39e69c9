import json
import os
from concurrent.futures import ThreadPoolExecutor


class PredictionWriter:
    """Writes prediction files off the training thread, one file at a time."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pred-writer")
        self.pending = None

    def submit(self, name, rows):
        self.wait()
        self.pending = self.pool.submit(self._write, name, rows)

    def wait(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def _write(self, name, rows):
        with open(os.path.join(self.folder, name), "w") as handle:
            for row in rows:
                handle.write(json.dumps(row) + "\n")

    def close(self):
        self.wait()
        self.pool.shutdown()
