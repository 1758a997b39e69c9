"""A set-up that fails: traceback and variables, in the output and in the verdict itself."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "3.2"
COMMAND_LINE = "rankscope run train.py"
BY_HAND = """
import os
import rankscope
if os.environ["RANK"] == "1":
    os.environ["MASTER_PORT"] = "no port"
rankscope.setup_distributed(timeout_s=20)
"""
PLAIN = """
import os
import torch.distributed as dist

def join():
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]) + 5)

join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("script", "line"), [(BY_HAND, "train.py:5"), (PLAIN, "join (train.py:5)")])
def test_the_verdict_carries_traceback_and_variables(rankscope: Rankscope, script: str, line: str) -> None:
    ended = rankscope.run(rankscope.script(script), env={"NCCL_SOCKET_IFNAME": "eth7"}, timeout_s=120)
    verdict = ended.verdict
    assert verdict["outcome"] == "crash", verdict["headline"]
    because = "\n".join(verdict["because"])
    assert "traceback of rank" in because
    assert line in because
    assert "NCCL_SOCKET_IFNAME=eth7" in because
    assert "WORLD_SIZE=2" in because
    assert "output" not in " ".join(verdict["fix"])


@pytest.mark.slow
def test_the_failure_pattern_of_the_notes(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(BY_HAND), env={"NCCL_DEBUG": "INFO"}, timeout_s=120)
    told = ended.log(1, "stdout").decode()
    assert "[DDP-ERROR] environment: MASTER_PORT='no port' is not a number" in told
    assert "[DDP-ERROR] Exception type: BadEnvironment\n" in told
    assert 'train.py", line 5, in <module>' in told
    assert "[DDP-DEBUG] Printing NCCL/CUDA environment variables:\n" in told
    assert "  NCCL_DEBUG=INFO" in told
