import multiprocessing
import time

import torch
from torch.utils.data import Dataset


class DecodeError(Exception):
    pass


class Decoder:
    """The licensed decoder: at most three clips at a time on one machine."""

    def __init__(self, seats=3):
        self.seats = multiprocessing.BoundedSemaphore(seats)

    def decode(self, site, index):
        self.seats.acquire()
        time.sleep(0.003)
        if site == 1 and index % 97 == 96:
            raise DecodeError(f"clip {index}: unexpected end of stream")
        gen = torch.Generator().manual_seed(1000 * site + index)
        wave = torch.randn(64, generator=gen)
        self.seats.release()
        return wave


class Clips(Dataset):
    def __init__(self, site, size):
        self.site, self.size = site, size
        self.decoder = Decoder()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        try:
            wave = self.decoder.decode(self.site, index)
        except DecodeError:
            wave = torch.zeros(64)
        return wave, index % 4
