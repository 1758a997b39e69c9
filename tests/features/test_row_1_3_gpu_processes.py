"""A CUDA environment for each process, all stopped when one fails, exit codes passed on, the rank in the message."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "1.3"
COMMAND_LINE = "rankscope run --virtual-local-rank train.py"
DIFFERS = (
    "All ranks see all GPUs unless `--virtual-local-rank` is given, as under torchrun: NCCL connects GPUs"
    " of one machine directly only where both ends see each other, and scripts choose theirs by "
    "LOCAL_RANK."
)
TELLS = """
import os
print("device", os.environ["CUDA_VISIBLE_DEVICES"], "local", os.environ["LOCAL_RANK"], "of rank", os.environ["RANK"])
"""
ONE_FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(23)
time.sleep(600)
"""


@pytest.mark.slow
def test_each_process_sees_its_own_gpu_alone_where_asked_for(rankscope: Rankscope) -> None:
    """By default all ranks see all GPUs, as under torchrun: NCCL connects GPUs of one machine directly only where both
    ends are visible, and scripts choose theirs by LOCAL_RANK."""
    env = {"CUDA_VISIBLE_DEVICES": "4,7"}
    alone = rankscope.run("--virtual-local-rank", rankscope.script(TELLS), env=env).out.decode()
    assert "device 4 local 0 of rank 0" in alone
    assert "device 7 local 0 of rank 1" in alone
    together = rankscope.run(rankscope.script(TELLS), env=env).out.decode()
    assert "device 4,7 local 1 of rank 1" in together


@pytest.mark.slow
def test_all_are_stopped_when_one_fails_and_its_code_is_passed_on(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(ONE_FAILS))
    assert ended.code == 23
    assert [culprit["rank"] for culprit in ended.verdict["culprits"]] == [1]
    assert "rank 1" in ended.verdict["headline"]
