"""What several rows need: lines of stages, and a folder to train in."""

from __future__ import annotations

import os
import re

import pytest

from conftest import COMMAND, Ended, Rankscope
from shared_runs import once

STAGE = re.compile(
    r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\+\d+\.\d{3}s\]\[R(\d+)/(\d+)\]\[LR\d+\]\[PID:\d+\] "
    r"CHECKPOINT (\d+): ([^(\n]+?)(?: \(.*\))?"
)
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


def stages(ended: Ended) -> str:
    return (ended.run_dir / "stages.log").read_text()


def numbers(ended: Ended) -> dict[str, dict[int, list[int]]]:
    """Words of a checkpoint → rank → the numbers under which it told it."""
    found: dict[str, dict[int, list[int]]] = {}
    for line in stages(ended).splitlines():
        if match := STAGE.fullmatch(line):
            found.setdefault(match[4], {}).setdefault(int(match[1]), []).append(int(match[3]))
    return found


def train(
    rankscope: Rankscope, *arguments: object, env: dict[str, str] | None = None, timeout_s: float = 200.0
) -> Ended:
    """`rankscope train --debug` in the test's folder, with its results there."""
    own = rankscope.folder
    options = ("--run-dir", own / "run", "--override", f"checkpoint.dir={own / '.checkpoints'}")
    cache = ("--override", f"data.cache_dir={own / 'cache' / 'datasets'}")
    started = rankscope.command(
        *COMMAND, "train", *options, *cache, *arguments, env={"OMP_NUM_THREADS": "1", **(env or {})}
    )
    ended = started.wait(timeout_s)
    return Ended(ended.code, ended.out, ended.err, own / "run")


@pytest.fixture
def short_training(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Three steps of `rankscope train --debug`."""
    return once(
        tmp_path_factory,
        "short-training",
        lambda rankscope: train(rankscope, "--debug", "--max-steps", 3, env=without_gpus()),
    )


@pytest.fixture
def nan_training(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """`rankscope train --debug`, in which rank 1 goes NaN at step 3."""
    return once(
        tmp_path_factory,
        "nan-training",
        lambda rankscope: train(rankscope, "--debug", "--fault", "nan@rank=1,step=3", env=without_gpus()),
    )


def without_gpus() -> dict[str, str]:
    """An environment in which a job runs on the CPU, also where there are GPUs."""
    return {"CUDA_VISIBLE_DEVICES": ""} if os.environ.get("CUDA_VISIBLE_DEVICES") is None else {}
