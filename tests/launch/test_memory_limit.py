"""A rank that reaches the limit it was given is diagnosed as such; imports under the lock are told."""

from __future__ import annotations

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow


def test_rank_over_its_memory_limit_is_out_of_memory_because_of_the_limit(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, time
        if os.environ["RANK"] == "1":
            kept = [bytearray(100 << 20) for _ in range(30)]
        time.sleep(60)
        """
    )
    ended = rankscope.run("--memory-limit", "2G", script)
    verdict = ended.verdict
    assert (verdict["outcome"], verdict["cause"]) == ("crash", "out-of-memory-host")
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    assert "each rank was limited to 2G of address space by --memory-limit" in verdict["because"]
    assert verdict["fix"][0].startswith("raise --memory-limit 2G")
    assert set(verdict["stages"]) == {"0", "1"}


def test_output_of_the_program_is_its_own_and_a_killed_rank_has_told_its_last_stage(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, signal, sys
        import rankscope
        os.makedirs("logs", exist_ok=True)
        rankscope.stage("Model created")
        rankscope.log_memory("POST-MODEL")
        print("torn", end="", flush=True)
        with rankscope.stage("evaluation"):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    ended = rankscope.run("--stages", "on", script, nproc=1)
    assert ended.code == 137
    assert ended.log(0, "stdout") == b"torn"
    assert ended.log(0, "stderr") == b""
    told = ended.err.decode()
    assert "CHECKPOINT 2: Logs directory ready" in told
    assert "CHECKPOINT 3: Model created" in told
    assert " MEM:POST-MODEL host " in told
    assert ended.out == b"R0:torn\n"
    assert ended.verdict["stages"] == {"0": "in stage 4, evaluation"}
    assert ended.verdict["culprits"][0]["stage"] == "in stage 4, evaluation"
    assert "CHECKPOINT 3: Model created" in (ended.run_dir / "stages.log").read_text()
