"""Jobs on machines where no process may look into another one, as in many containers: ranks are asked by a signal."""

from __future__ import annotations

import pytest

from conftest import Rankscope
from rankscope.evidence.store import load_evidence

CLOSED = {"RANKSCOPE_PTRACE": "0"}
HEAD = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
HANGS = """
for step in range(40):
    dist.all_reduce(torch.ones(8))
    if not (rank == 1 and step == 20):
        dist.barrier()
"""
BUSY = """
for step in range(3):
    if rank == 0:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            sum(range(10000))
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""

pytestmark = pytest.mark.slow


def test_a_hang_is_told_with_rank_and_line(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(HEAD + HANGS), nproc=3, env=CLOSED)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["cause"]) == (75, "hang", "collective-skipped"), verdict["headline"]
    assert verdict["certainty"] == "proven"
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    for seen in load_evidence(ended.run_dir / verdict["evidence"]).ranks:
        assert seen.missing["stacks"] == "py-spy is switched off by RANKSCOPE_PTRACE=0"
        assert [sample.source for sample in seen.stacks] == ["faulthandler", "faulthandler"]


def test_a_rank_that_works_is_left_alone(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stall-after", "4", rankscope.script(HEAD + BUSY), nproc=3, env=CLOSED)
    assert (ended.code, ended.verdict["outcome"]) == (0, "ok"), ended.verdict["headline"]
