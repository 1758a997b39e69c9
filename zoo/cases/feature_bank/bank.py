"""A bank of features with an index; a thread keeps the index in order."""

import threading
import time

import torch


class FeatureBank:
    def __init__(self, size, width):
        self.rows = torch.zeros(size, width)
        self.index = {}
        self.rows_lock = threading.Lock()
        self.index_lock = threading.Lock()

    def put(self, key, row):
        with self.rows_lock:
            slot = key % len(self.rows)
            self.rows[slot] = row
            time.sleep(0.001)
            with self.index_lock:  # the slot becomes visible
                self.index[key] = slot

    def compact(self):
        """Forgets keys whose rows are empty."""
        with self.index_lock:
            time.sleep(0.02)
            for key, slot in list(self.index.items()):
                with self.rows_lock:  # nobody writes the row meanwhile
                    if not self.rows[slot].any():
                        del self.index[key]

    def compact_every(self, seconds):
        def run():
            while True:
                time.sleep(seconds)
                print("compacting the bank", flush=True)
                self.compact()

        threading.Thread(target=run, name="compact", daemon=True).start()
