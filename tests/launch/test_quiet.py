"""How much a run says, and what of it: a start, notices, one verdict; the rest is in its folder."""

from __future__ import annotations

import os
import signal

import pytest

from conftest import COMMAND, Rankscope
from terminal_picture import run_on_terminal

pytestmark = pytest.mark.slow

TRAINS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("the same on every rank")
for step in range(20):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    {at_each_step}
print("rank", rank, "is done")
dist.destroy_process_group()
"""


def ours(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(("R0", "R1"))]


@pytest.fixture(autouse=True)
def as_a_user_starts_it(rankscope: Rankscope) -> None:
    rankscope.options = ()


def test_healthy_run_says_what_starts_and_that_it_went_well(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(TRAINS.format(at_each_step="pass")))
    said = ended.lines()
    assert ended.code == 0
    assert len(ours(said)) <= 6, said
    assert ours(said)[0].startswith("rankscope: train.py · 2 ranks · ")
    assert ours(said)[-1].startswith("rankscope: OK, 2 ranks, ")
    assert "20 steps" in ours(said)[-1]
    assert said.count("R0,1:the same on every rank") == 1
    assert {"R0:rank 0 is done", "R1:rank 1 is done"} <= set(said)
    kept = (ended.run_dir / "stages.log").read_text()
    assert "rankscope: versions: " in kept
    assert "WORLD_SIZE=2" in kept
    assert "CHECKPOINT 1: Script started" in kept
    assert ended.log(0, "stdout").startswith(b"the same on every rank\n")
    assert ended.log(1, "stdout").startswith(b"the same on every rank\n")


def test_hang_says_one_verdict_with_the_stages_and_no_traceback_of_our_making(rankscope: Rankscope) -> None:
    script = rankscope.script(TRAINS.format(at_each_step="step == 9 and rank == 1 and dist.barrier()"))
    ended = rankscope.run(script)
    said = ours(ended.lines())
    assert ended.code == 75
    assert len(said) <= 25, said
    assert " ".join(" ".join(said).split()).count(ended.verdict["headline"]) == 1
    assert any(line.startswith("  stages ") and "ranks 0, 1 after stage" in line for line in said), said
    assert "Traceback" not in ended.err.decode()


def test_stages_are_shown_where_that_was_asked_for(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", rankscope.script(TRAINS.format(at_each_step="pass")))
    told = ended.err.decode()
    assert "rankscope: versions: " in told
    assert told.count("CHECKPOINT 1: Script started") == 2


def test_tracebacks_after_ctrl_c_are_in_the_files_only(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, time
        print("ready", os.environ["RANK"], flush=True)
        try:
            time.sleep(60)
        finally:
            print("last words of", os.environ["RANK"], flush=True)
        """
    )
    started = rankscope.start(script)
    started.shows("ready 0", "ready 1")
    os.killpg(started.process.pid, signal.SIGINT)
    ended = started.wait(20.0)
    assert ended.code == 130
    assert b"KeyboardInterrupt" in ended.log(0, "stderr")
    assert not any(word in ended.err + ended.out for word in (b"Traceback", b"KeyboardInterrupt", b"time.sleep(60)"))
    assert {b"R0:last words of 0", b"R1:last words of 1"} <= set(ended.out.splitlines())


def test_a_job_cannot_steer_the_terminal(rankscope: Rankscope) -> None:
    script = rankscope.script(
        r"""
        import os
        print("\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m \x1b]52;c;ZXZpbA==\x07text", flush=True)
        raise RuntimeError("\x1b[?1049h\x1b]0;title\x07it failed")
        """
    )
    ended = rankscope.run("--json", script, nproc=1)
    shown = ended.out + ended.err
    assert b"R0:\x1b[31mred\x1b[0m text\n" in ended.out
    assert shown.count(b"\x1b") == 2, "the colour"
    assert b"it failed" in ended.err
    assert ended.log(0, "stdout").startswith(b"\x1b]0;title\x07")


def test_on_a_terminal_bars_and_the_status_stay_in_place(rankscope: Rankscope) -> None:
    bar = r'rank == 0 and sys.stderr.write(f"\r{step + 1}/20 |###|"); time.sleep(0.2)'
    script = rankscope.script(TRAINS.format(at_each_step=bar + "\n    step == 10 and print('in the middle')"))
    command = [*COMMAND, "run", "--nproc-per-node", "2", "--run-dir", str(rankscope.folder / "run"), str(script)]
    code, _, pictures = run_on_terminal(command, rankscope.folder, {"NO_COLOR": "1"})
    last = [line for line in pictures[-1] if line]
    assert code == 0, last
    assert last[0].startswith("rankscope: train.py · 2 ranks · run")
    assert last[-1].startswith("rankscope: OK, 2 ranks, ")
    assert [line for line in last if "|###|" in line] == ["R0:20/20 |###|"], "the bar once, with its last state"
    assert "R0,1:in the middle" in last
    states = {line for picture in pictures for line in picture[-3:] if "|###|" in line}
    assert len(states) >= 5, states
    assert all(sum("|###|" in line for line in picture) <= 1 for picture in pictures)
    status = {line for picture in pictures for line in picture[-1:] if line.startswith("2 ranks · ")}
    assert any("step" in line and "steps/s" in line for line in status), status
    assert not any(line.startswith("2 ranks ·") for line in last), "nothing in place is left behind"
