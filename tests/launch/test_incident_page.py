"""`report.html` in the folder of a run: always after a bad end, when asked for after a good one."""

from __future__ import annotations

import json

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

BARRIER_ON_ONE = """
import torch.distributed as dist
dist.init_process_group("gloo")
print("<script>before</script>", flush=True)
if dist.get_rank() == 0:
    dist.barrier()
else:
    dist.all_reduce(__import__("torch").ones(3))
"""
FINE = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier(); dist.destroy_process_group()"
FAILS = "raise ValueError('no such <b>column</b>')"


def test_run_that_hangs_leaves_a_page_with_its_line(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(BARRIER_ON_ONE))
    assert ended.code == 75
    text = (ended.run_dir / "report.html").read_text()
    assert "dist.barrier()" in text
    assert "&lt;script&gt;before&lt;/script&gt;" in text
    assert ended.verdict["report"] == "report.html"
    assert "report.html" in ended.err.decode()


def test_page_that_cannot_be_written_is_a_note(rankscope: Rankscope) -> None:
    folder = rankscope.folder / "taken"
    (folder / "report.html").mkdir(parents=True)
    ended = rankscope.run("--run-dir", folder, rankscope.script(BARRIER_ON_ONE))
    assert ended.code == 75
    told = json.loads((folder / "verdict.json").read_bytes())
    assert (told["outcome"], told["report"]) == ("hang", "")
    assert "report.html could not be made: Is a directory" in told["notes"]


def test_run_that_fails_leaves_a_page(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(FAILS))
    assert "no such &lt;b&gt;column&lt;/b&gt;" in (ended.run_dir / "report.html").read_text()


def test_good_run_leaves_one_only_when_asked(rankscope: Rankscope) -> None:
    quiet = rankscope.run(rankscope.script(FINE))
    assert (quiet.code, quiet.verdict["report"]) == (0, "")
    assert not (quiet.run_dir / "report.html").exists()
    asked = rankscope.run("--report", rankscope.script(FINE))
    assert (asked.code, asked.verdict["report"]) == (0, "report.html")
    assert "OK" in (asked.run_dir / "report.html").read_text()
