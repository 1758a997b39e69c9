"""Reads feature blocks from an object store, with a few attempts for each."""

import functools
import time

import torch


def retry(attempts, pause):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for attempt in range(1, attempts + 1):
                try:
                    return function(*args, **kwargs)
                except OSError as error:
                    if attempt == attempts:
                        raise
                    print(f"attempt {attempt} of {attempts}: {error}", flush=True)
                    time.sleep(pause)

        return wrapper

    return decorate


class FeatureStore:
    def __init__(self, blocks, width, absent=()):
        self.blocks = blocks
        self.width = width
        self.absent = set(absent)

    @retry(attempts=3, pause=0.4)
    def read(self, number):
        time.sleep(0.04)
        if number in self.absent:
            raise ConnectionResetError(f"object block-{number:05d} ended after 0 bytes")
        generator = torch.Generator().manual_seed(number)
        return torch.randn(32, self.width, generator=generator)
