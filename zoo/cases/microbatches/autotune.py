"""Finds the number of pieces into which a batch must be cut so that a step fits into memory."""

import functools

import torch.distributed as dist


def fit_to_memory(step):
    """Runs `step(..., pieces=n)`, with twice as many pieces whenever it does not fit."""

    @functools.wraps(step)
    def run(*args, **kwargs):
        while True:
            try:
                return step(*args, pieces=run.pieces, **kwargs)
            except MemoryError as error:
                run.pieces *= 2
                print(f"{error}; continuing with {run.pieces} pieces", flush=True)
                dist.barrier()  # nobody allocates before everybody has freed

    run.pieces = 1
    return run
