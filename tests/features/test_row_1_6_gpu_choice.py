"""One GPU by number, or the freest by use and memory; `rankscope gpus` shows the choice and why."""

from __future__ import annotations

import pytest
import torch
from notes import train

from conftest import COMMAND, Rankscope
from rankscope.process_status import gpu_number

ROW = "1.6"
COMMAND_LINE = "rankscope train --gpus auto:1; CUDA_VISIBLE_DEVICES=3 GPU_RANK=3 rankscope train"


@pytest.mark.parametrize(
    ("variables", "ranks", "number"),
    [({"GPU_RANK": "3"}, 1, 3), ({"GPU_RANK": "3"}, 2, 0), ({}, 1, 0), ({"GPU_RANK": "x"}, 1, 0)],
)
def test_lines_of_the_only_rank_are_called_after_gpu_rank(variables: dict[str, str], ranks: int, number: int) -> None:
    assert gpu_number(variables, 0, ranks) == number


@pytest.mark.slow
def test_a_wrong_gpu_rank_is_one_line(rankscope: Rankscope) -> None:
    rankscope.script("print(1)")
    ended = rankscope.command(*COMMAND, "run", "train.py", env={"GPU_RANK": "third"}).wait(60)
    assert ended.code == 2
    assert b"write GPU_RANK=3" in ended.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_freest_gpu_is_taken_and_named_in_every_line(rankscope: Rankscope) -> None:
    chosen = train(rankscope, "--debug", "--max-steps", 3, "--gpus", "auto:1", "--nproc-per-node", 1)
    assert chosen.code == 0, chosen.err.decode()
    assert "CUDA_VISIBLE_DEVICES=0" in chosen.err.decode()
    named = train(rankscope, "--debug", "--max-steps", 3, env={"CUDA_VISIBLE_DEVICES": "0", "GPU_RANK": "5"})
    assert named.code == 0, named.err.decode()
    assert "GPU5:INFO | [GPU 5] Step [0/3]" in named.out.decode()
    listed = rankscope.command(*COMMAND, "gpus").wait(60)
    assert listed.code == 0
    assert "--gpus auto would take: 0" in listed.out.decode()
