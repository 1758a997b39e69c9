import json
import os
import queue
import threading
import time


class Uploader:
    """Writes metrics in the background so that training does not wait for the share."""

    def __init__(self, folder, run):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, f"{run}.jsonl")
        self.pending = queue.Queue()
        self.worker = threading.Thread(target=self._run, name="uploader")
        self.worker.start()

    def log(self, **metrics):
        metrics["time"] = time.time()
        self.pending.put(metrics)

    def close(self):
        self.pending.put(None)
        self.worker.join()

    def _run(self):
        with open(self.path, "a") as f:
            while True:
                item = self.pending.get()
                if item is None:
                    return
                f.write(json.dumps(item) + "\n")
                f.flush()
