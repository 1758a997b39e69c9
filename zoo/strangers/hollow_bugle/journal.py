"""Append-only run journal, shared by the training loop and the heartbeat thread."""
import json
import os
import threading
import time


class Journal:
    def __init__(self, path):
        self.path = path
        self.mutex = threading.Lock()
        self.pending = []

    def record(self, **fields):
        self.mutex.acquire(blocking=True)
        fields["at"] = round(time.time(), 3)
        self.pending.append(fields)
        self.mutex.release()

    def flush(self):
        self.mutex.acquire()
        text = "".join(json.dumps(f, allow_nan=False) + "\n" for f in self.pending)
        with open(self.path, "a") as out:
            out.write(text)
        self.pending.clear()
        self.mutex.release()


class Heartbeat(threading.Thread):
    """Writes the journal to disk every now and then; a failed write is tried again at the next beat."""

    def __init__(self, journal, period):
        super().__init__(daemon=True, name="heartbeat")
        self.journal, self.period, self.over = journal, period, threading.Event()

    def run(self):
        while not self.over.wait(self.period):
            try:
                self.journal.flush()
            except Exception as err:
                print(f"journal not written: {err}", flush=True)
                self.over.wait(4 * self.period)

    def stop(self):
        self.over.set()
        self.join()
