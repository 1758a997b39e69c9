"""Checks of the incoming data; a job that fails one ends with the code the scheduler knows."""

import sys

BAD_DATA = 3


def check_batch(inputs, low, high):
    smallest, largest = inputs.min().item(), inputs.max().item()
    if smallest < low or largest > high:
        print(f"data check failed: values from {smallest:.1f} to {largest:.1f}", file=sys.stderr, flush=True)
        sys.exit(BAD_DATA)
