"""The comparison of tools: how their reports are judged, kept and shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ZOO = Path(__file__).resolve().parent.parent.parent / "zoo"
sys.path.insert(0, str(ZOO))

import compare  # noqa: E402
from comparison import (  # noqa: E402
    Comparison,
    ToolResult,
    ToolRun,
    judge_peer,
    judge_rankscope,
    merged,
    read_comparison,
    write_comparison,
)
from expectation import Case, accepted_lines, case_names, load_case  # noqa: E402
from judge import GotCulprit, GotVerdict, GotWhere, Observation, judge  # noqa: E402
from peer_output import Report, ShownLine  # noqa: E402
from peers import PeerRun  # noqa: E402
from table import cell, document  # noqa: E402

ILL = load_case("eval_batchnorm")
"""A hang of rank 0, one accepted line."""
HEALTHY = load_case("uneven_join")
(LINE,) = [number for numbers in accepted_lines(ILL).values() for number in numbers]


def peer_run(
    case: Case, *, at: float | None, ranks: set[int], shown: tuple[ShownLine, ...] = (), exit_code: int | None = None
) -> ToolResult:
    run = PeerRun(Report(at, frozenset(ranks), shown, "it said so"), exit_code, fault_at=100.0)
    return judge_peer(case, "torchrun", run)


def shown(line: int, rank: int | None = None) -> tuple[ShownLine, ...]:
    return (ShownLine(str(ILL.folder / "train.py"), line, rank),)


def result(tool: str = "torchrun", case: str = ILL.name, **changes: object) -> ToolResult:
    fields: dict[str, object] = {
        "seen": True,
        "seconds": 3.0,
        "ranks": [0],
        "right_rank": True,
        "right_line": True,
        "false_alarm": False,
        "exit_code": 1,
        "said": "",
    }
    return ToolResult(case=case, tool=tool, **{**fields, **changes})  # type: ignore[arg-type]


def test_right_rank_and_line_are_right() -> None:
    judged = peer_run(ILL, at=103.5, ranks={0}, shown=shown(LINE))

    assert (judged.seen, judged.seconds, judged.right_rank, judged.right_line) == (True, 3.5, True, True)


def test_naming_a_victim_besides_the_culprit_is_wrong() -> None:
    assert peer_run(ILL, at=103.0, ranks={0, 1}).right_rank is False


def test_the_line_of_a_victims_stack_is_not_the_culprits() -> None:
    assert peer_run(ILL, at=103.0, ranks={0}, shown=shown(LINE, rank=1)).right_line is False
    assert peer_run(ILL, at=103.0, ranks={0}, shown=shown(LINE, rank=0)).right_line is True
    assert peer_run(ILL, at=103.0, ranks={0}, shown=shown(LINE + 1)).right_line is False


def test_a_tool_that_said_nothing_has_nothing_right() -> None:
    judged = peer_run(ILL, at=None, ranks=set())

    assert (judged.seen, judged.right_rank, judged.right_line, judged.false_alarm) == (False, False, False, False)


def test_a_report_long_before_the_fault_is_a_false_alarm() -> None:
    judged = peer_run(ILL, at=90.0, ranks={0})

    assert (judged.seen, judged.false_alarm) == (False, True)


@pytest.mark.parametrize(("at", "exit_code", "alarm"), [(None, 0, False), (105.0, 1, True), (None, 1, True)])
def test_a_healthy_job_reported_or_ended_is_a_false_alarm(at: float | None, exit_code: int, alarm: bool) -> None:
    judged = peer_run(HEALTHY, at=at, ranks=set(), exit_code=exit_code)

    assert judged.false_alarm is alarm
    assert judged.right_rank is None


def test_rankscope_is_judged_by_its_verdict() -> None:
    where = GotWhere(str(ILL.folder / "train.py"), LINE)
    verdict = GotVerdict("hang", "collective-skipped", "proven", [GotCulprit(0, "rank", where)], "rank 0 did it")
    seen = Observation(75, verdict, announcements=("rankscope: HANG",), fault_at=100.0, announced_at=102.0)

    judged = judge_rankscope(ILL, "rankscope", seen, judge(ILL, seen))

    assert (judged.seen, judged.seconds, judged.right_rank, judged.right_line) == (True, 2.0, True, True)


def test_results_of_the_same_case_and_tool_are_replaced_and_others_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    old = Comparison(40.0, 2, {"torchrun": ToolRun("2026-01-01", "torch 1")}, [result(), result("rankscope")])
    write_comparison(file, old)

    new = merged(read_comparison(file), {"torchrun": ToolRun("2026-01-02", "torch 2")}, [result(seconds=9.0)])

    assert [(each.tool, each.seconds) for each in new.results] == [("rankscope", 3.0), ("torchrun", 9.0)]
    assert new.tools["torchrun"].version == "torch 2"


def test_cells_say_what_was_seen_and_what_was_wrong() -> None:
    assert cell(result()) == "3.0 s, rank ✓, line ✓"
    assert cell(result(ranks=[1, 2], right_rank=False, right_line=None)) == "3.0 s, rank ✗ (1, 2)"
    assert cell(result(seen=False, seconds=None)) == "–"
    assert cell(result(false_alarm=True)) == "**false alarm**"
    assert cell(None) == "not run"


def test_page_has_every_case_once_and_totals_of_what_was_run() -> None:
    tools = {"torchrun": ToolRun("2026-01-01", "torch 2.13"), "rankscope": ToolRun("2026-01-01", "rankscope 1")}
    page = document(Comparison(40.0, 2, tools, [result(), result("rankscope", right_line=False)]))

    for name in case_names():
        assert page.count(f"[{name}](") == 1
    assert "| hangs seen | 1 of 1 | 1 of 1 |" in page
    assert "| right line | 1 of 1 | 0 of 1 |" in page
    assert "{" not in page.replace("{tmp}", ""), "a placeholder was not filled in"


def test_page_is_written_again_without_running_anything(tmp_path: Path) -> None:
    results, page = tmp_path / "results.json", tmp_path / "zoo.md"
    write_comparison(results, Comparison(40.0, 2, {"torchrun": ToolRun("2026-01-01", "torch 2.13")}, [result()]))

    assert compare.main(["--into", str(results), "--table", str(page), "--note", "On a busy machine."]) == 0
    assert "3.0 s, rank ✓, line ✓" in page.read_text()
    assert "**On a busy machine.**" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tools", "horovod"], "no such tool: horovod"),
        (["--tools", "torchrun", "no_such_case"], "no such case: no_such_case"),
        ([], "is not there, and no --tools to make it"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(["--into", str(tmp_path / "results.json"), *arguments])

    assert ended.value.code == 2
    assert words in capsys.readouterr().err
