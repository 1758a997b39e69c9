"""Memory that runs out while libraries are imported is memory, not a missing module."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "2.3"
COMMAND_LINE = "rankscope run --memory-limit 450M train.py"
BAD_ALLOC = """
import os, sys
sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\\n  what():  std::bad_alloc\\n")
sys.stderr.flush()
os.abort()
"""
NOT_MAPPED = "raise ImportError('libcublas.so.12: failed to map segment from shared object')"


@pytest.mark.slow
@pytest.mark.parametrize("script", [BAD_ALLOC, NOT_MAPPED], ids=["bad_alloc", "failed to map segment"])
def test_it_is_memory_and_serialised_imports_are_suggested(rankscope: Rankscope, script: str) -> None:
    ended = rankscope.run(rankscope.script(script), env={"PYTHONFAULTHANDLER": ""})
    verdict = ended.verdict
    assert (verdict["outcome"], verdict["cause"]) == ("crash", "out-of-memory-host"), verdict["headline"]
    fix = " ".join(verdict["fix"])
    assert "--serialize-imports on" in fix
    assert "install" not in fix


@pytest.mark.slow
def test_a_small_limit_names_the_option(rankscope: Rankscope) -> None:
    pytest.importorskip("numpy")
    ended = rankscope.run("--memory-limit", "400M", rankscope.script("import torch\nx = bytearray(1 << 30)"))
    verdict = ended.verdict
    assert verdict["cause"] == "out-of-memory-host", verdict["headline"]
    assert "raise --memory-limit 400M" in verdict["fix"][0]
