"""One rank of a job that trains in one go and in two, and compares the bits. Arguments: a folder, strategies."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from small_training import Training, same

from rankscope.errors import UsageError
from rankscope.train.config import CheckpointConfig
from rankscope.train.state.checkpointer import Checkpointer


def resumed(strategy: str, config: CheckpointConfig) -> Training:
    checkpointer = Checkpointer(replace(config, resume="auto"), say=lambda _line: None)
    training = Training(strategy)
    assert checkpointer.load_latest(training.model, training.optimizer, training.samples) == 10
    training.steps(10)
    checkpointer.close()
    return training


def refused(strategy: str, config: CheckpointConfig) -> str:
    checkpointer = Checkpointer(replace(config, resume="auto"), say=lambda _line: None)
    other = Training(strategy, width=24)
    try:
        checkpointer.load_latest(other.model, other.optimizer, other.samples)
    except UsageError as error:
        return str(error)
    finally:
        checkpointer.close()
    return "loaded"


def compare(strategy: str, config: CheckpointConfig) -> None:
    whole = Training(strategy)
    whole.steps(20)
    checkpointer = Checkpointer(config, say=lambda line: print(line, flush=True))
    half = Training(strategy)
    assert checkpointer.load_latest(half.model, half.optimizer, half.samples) is None
    half.steps(10)
    checkpointer.save(10, half.model, half.optimizer, half.samples)
    half.steps(3)  # while it is being written
    checkpointer.wait()
    checkpointer.close()
    again = resumed(strategy, config)
    print(f"{strategy}: {'bit-equal' if same(again.weights(), whole.weights()) else 'DIFFERENT'}", flush=True)
    print(f"{strategy}: {refused(strategy, config)}", flush=True)


def main() -> None:
    rank, folder, strategies = int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2:]
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    for strategy in strategies:
        compare(strategy, CheckpointConfig(dir=str(folder / strategy)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
