"""A limit of address space for each rank, small NCCL buffers, thrifty allocators."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "2.2"
COMMAND_LINE = "rankscope run --memory-limit 100G --low-memory train.py"
DIFFERS = (
    "No limit is set unless `--memory-limit` is given: CUDA reserves more address space than 100 GB on "
    "large machines, and a job that worked would fail."
)
TELLS = """
import os, resource
print("limit", resource.getrlimit(resource.RLIMIT_AS)[0] >> 30)
print("buffers", os.environ["NCCL_BUFFSIZE"], os.environ["PYTORCH_CUDA_ALLOC_CONF"])
"""


@pytest.mark.slow
def test_every_rank_has_the_limit_and_the_small_buffers(rankscope: Rankscope) -> None:
    ended = rankscope.run("--memory-limit", "100G", "--low-memory", rankscope.script(TELLS))
    assert ended.out.decode().count("limit 100") == 2
    assert ended.out.decode().count("buffers 1048576 expandable_segments:True") == 2
    assert "--low-memory: NCCL_BUFFSIZE=1048576" in ended.err.decode()
