"""A bank of background noises, refreshed from disk now and then by a thread."""

import threading
import time

import torch


class NoiseBank:
    def __init__(self, size=64, width=80):
        self.lock = threading.Lock()
        self.width = width
        self.clips = torch.randn(size, width)

    def mix(self, window, index):
        with self.lock:  # not while the clips are exchanged
            noise = self.clips[index % len(self.clips)]
        return window + 0.1 * noise

    def refresh(self, seed):
        """Loads other clips in the background; returns once the loading has begun."""
        begun = threading.Event()
        threading.Thread(target=self._load, args=(seed, begun), daemon=True).start()
        begun.wait()

    def _load(self, seed, begun):
        generator = torch.Generator().manual_seed(seed)
        with self.lock:
            begun.set()
            for number in range(len(self.clips)):
                time.sleep(0.02)
                self.clips[number] = torch.randn(self.width, generator=generator)
