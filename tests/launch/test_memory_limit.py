"""A rank that reaches the limit it was given is diagnosed as such; imports under the lock are told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope, wait_until

pytestmark = pytest.mark.slow
LIMIT = 1 << 30


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


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """One of this process's own, with little memory; joined by writing a pid into `cgroup.procs`."""
    folder = own_memory_cgroup()
    if folder is None or not os.access(folder, os.W_OK):
        pytest.skip("no memory cgroup may be made here")
    mine = folder / f"rankscope-test-{os.getpid()}"
    mine.mkdir()
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max")
    for name, text in zip(limits, (str(LIMIT), str(LIMIT), str(LIMIT), "0"), strict=True):
        if (mine / name).exists():
            (mine / name).write_text(text)
    yield mine
    assert wait_until(lambda: (mine / "cgroup.procs").read_text() == "", 10.0)
    mine.rmdir()


def own_memory_cgroup() -> Path | None:
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path.lstrip("/")
    unified = root / Path("/proc/self/cgroup").read_text().partition("0::/")[2].strip()
    return unified if (unified / "memory.max").exists() else None


def test_kill_by_the_memory_controller_is_told_with_how_the_rank_grew(rankscope: Rankscope, small_cgroup: Path) -> None:
    script = rankscope.script(
        """
        import os, time
        kept = []
        for _ in range(200):
            if os.environ["RANK"] == "1":
                kept.append(b"x" * (32 << 20))
            time.sleep(0.2)
        """
    )
    command = f'echo $$ > {small_cgroup}/cgroup.procs && exec "$0" "$@"'
    run = rankscope.folder / "run"
    ended = rankscope.command(
        *("bash", "-c", command, *COMMAND, "run", "--nproc-per-node=2", "--run-dir", run, script)
    ).wait()
    verdict = json.loads((run / "verdict.json").read_text())
    assert (ended.code, verdict["cause"]) == (137, "out-of-memory-host"), ended.err.decode()
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    (grew,) = [fact for fact in verdict["facts"] if fact["kind"] == "host-grew"]
    assert (grew["rank"], grew["steps"]) == (1, 0)
    assert grew["first"] < LIMIT / 4 < LIMIT / 2 < grew["last"] <= LIMIT
