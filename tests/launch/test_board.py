"""`rankscope run --board`, as a person sees it: in tmux, on a job with a slow rank that then hangs."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from conftest import COMMAND, Rankscope, wait_until
from in_tmux import TRAINS, row

pytestmark = pytest.mark.slow


def test_board_stands_in_place_of_the_output_and_goes_before_the_verdict(
    rankscope: Rankscope,
    tmux: Callable[..., str],
) -> None:
    hang, run = rankscope.folder / "hang.now", rankscope.folder / "run"
    script = rankscope.script(TRAINS)
    job = ("run", "--board", "--on-hang", "stop", "--stall-after", "20", "--nproc-per-node", "4", "--run-dir", str(run))
    command = shlex.join([*COMMAND, *job, str(script), str(hang)])
    tmux("new-session", "-d", "-x", "120", "-y", "40", f"{command}; echo left with $?; sleep 60")

    def seen() -> str:
        return tmux("capture-pane", "-p")

    assert wait_until(lambda: "WWWWWW" in row(seen(), 0) and "training" in row(seen(), 2), 90.0), seen()
    trains = seen()
    assert trains.count("rank  doing") == 1, "in place, not one below the other"
    assert "train.py · 4 ranks · step " in trains
    assert f"output: {run}/output.log" in trains or "output: run/output.log" in trains, trains
    assert "WWW" not in row(trains, 2), "the others wait for it, not it for them"
    assert "<script>" not in trains
    assert "<script>document.title = 'taken over'</script> 2" in (run / "output.log").read_text()
    hang.touch()
    assert wait_until(lambda: "in no call for" in row(seen(), 3), 30.0), seen()
    stands = seen()
    heads = next(line for line in stands.splitlines() if line.startswith("rank  doing"))
    assert all(row(stands, rank)[heads.index("waits for") :].split()[0] == "3" for rank in (0, 1, 2)), stands
    assert wait_until(lambda: "left with 75" in seen(), 60.0), seen()
    ended = seen()
    assert "rank  doing" not in ended, "the board is gone"
    assert "rank 3 is sleeping in train.py:10" in ended
    assert "<script>" not in ended


def test_without_a_terminal_a_line_says_so_and_the_output_is_shown(rankscope: Rankscope) -> None:
    ended = rankscope.run("--board", rankscope.script("print('hello')"))
    assert ended.code == 0
    assert "rankscope: --board needs a terminal on standard error: the ranks' output is shown instead" in ended.lines()
    assert "R0:hello" in ended.lines()
    assert not (ended.run_dir / "output.log").exists()
