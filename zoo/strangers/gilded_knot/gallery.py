"""Ring buffer of samples, written to disk by a thread of its own."""
import json
import logging
import threading
from collections import deque
from pathlib import Path

log = logging.getLogger("gallery")
NAMES = {0: "healthy", 1: "rust", 2: "mildew", 3: "spot"}


class Gallery:
    def __init__(self, folder, every=12, size=24):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.every = every
        self.items = deque(maxlen=size)
        self.guard = threading.Lock()
        self.due = threading.Event()
        self.written = 0
        self.closing = False
        self.thread = threading.Thread(target=self.run, name="gallery", daemon=True)
        self.thread.start()

    def add(self, step, image, label):
        with self.guard:
            self.items.append((step, image.mean().item(), label))
        if step % self.every == self.every - 1:
            self.due.set()

    def encode(self, item):
        step, brightness, label = item
        return {"step": step, "brightness": round(brightness, 4), "label": NAMES[label]}

    def dump(self):
        self.guard.acquire()
        rows = [self.encode(item) for item in self.items]
        self.items.clear()
        self.guard.release()
        (self.folder / f"{self.written:04d}.json").write_text(json.dumps(rows))

    def run(self):
        while not self.closing:
            self.due.wait()
            self.due.clear()
            try:
                self.dump()
            except Exception as exc:
                log.warning("snapshot %d skipped (%r)", self.written, exc)
            self.written += 1
