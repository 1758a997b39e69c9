"""What other tools' output is read as: recorded output of real runs, with shortened paths."""

from __future__ import annotations

import sys
from pathlib import Path

ZOO = Path(__file__).resolve().parent.parent.parent / "zoo"
sys.path.insert(0, str(ZOO))

from peer_output import (  # noqa: E402
    Finding,
    ShownLine,
    TimedLine,
    first_of_each_group,
    read_ft_launcher,
    read_torchfrtrace,
    read_torchrun,
)

RECORDED = Path(__file__).resolve().parent / "recorded"
JOB = "/job/"


def timed(name: str) -> list[TimedLine]:
    """One second a line."""
    return [TimedLine(float(number), line) for number, line in enumerate((RECORDED / name).read_text().splitlines())]


def line_number(name: str, text: str) -> float:
    return next(line.at for line in timed(name) if text in line.text)


def test_torchrun_names_the_rank_of_its_root_cause_and_shows_all_tracebacks() -> None:
    report = read_torchrun(timed("torchrun_crash.txt"), JOB)

    assert report.ranks == {0}
    assert report.shown == (ShownLine("/job/train.py", 34, rank=1), ShownLine("/job/train.py", 34, rank=2))
    assert "failed (exitcode: 3) local_rank: 0" in report.said


def test_torchrun_has_spoken_when_it_begins_to_stop_ranks() -> None:
    report = read_torchrun(timed("torchrun_crash.txt"), JOB)

    assert report.at == line_number("torchrun_crash.txt", "closing signal SIGTERM")


def test_torchrun_says_nothing_of_a_hang() -> None:
    report = read_torchrun(timed("torchrun_hang.txt"), JOB)

    assert report.at is None
    assert report.ranks == frozenset()
    assert report.shown == ()


def test_torchrun_without_its_summary_names_the_rank_that_it_logged_first() -> None:
    lines = [line for line in timed("torchrun_crash.txt") if line.at <= line_number("torchrun_crash.txt", "failed (")]

    assert read_torchrun(lines, JOB).ranks == {0}


def test_ft_launcher_names_every_rank_whose_heartbeat_it_misses() -> None:
    report = read_ft_launcher(timed("ft_launcher_two_silent.txt"), JOB)

    assert report.ranks == {0, 1}
    assert report.at == line_number("ft_launcher_two_silent.txt", "Did not get subsequent heartbeat")


def test_ft_launcher_names_the_rank_that_failed_first_where_no_heartbeat_was_missed() -> None:
    report = read_ft_launcher(timed("ft_launcher_crash.txt"), JOB)

    assert report.ranks == {0}
    assert ShownLine("/job/train.py", 24, rank=0) in report.shown
    assert ShownLine("/job/train.py", 59, rank=0) not in report.shown, "an outer frame"


def test_torchfrtrace_names_the_ranks_that_did_not_join_and_shows_the_stack_of_one_that_did() -> None:
    (finding,) = read_torchfrtrace((RECORDED / "torchfrtrace_missing_rank.txt").read_text(), JOB)

    assert finding.ranks == {0}
    assert finding.sequence == 34
    assert finding.group == "0:default_pg"
    assert finding.shown == (ShownLine("/job/train.py", 34, rank=None),)


def test_torchfrtrace_names_the_culprit_of_a_mismatch_before_its_later_findings() -> None:
    findings = read_torchfrtrace((RECORDED / "torchfrtrace_mismatch.txt").read_text(), JOB)

    assert [finding.ranks for finding in findings] == [{0}, {1, 2}]
    assert [finding.shown[0].line for finding in findings] == [85, 54]
    assert first_of_each_group(findings) == findings[:1]


def test_torchfrtrace_that_misses_a_dump_counts_as_naming_its_rank() -> None:
    findings = read_torchfrtrace((RECORDED / "torchfrtrace_no_dump.txt").read_text(), JOB)

    assert {finding.ranks for finding in findings} == {frozenset({1})}
    assert len(first_of_each_group(findings)) == 1


def test_torchfrtrace_without_a_finding_has_none() -> None:
    assert read_torchfrtrace("tabulate is not installed. Proceeding without it.\n", JOB) == ()


def test_findings_of_different_groups_are_kept_apart() -> None:
    findings = tuple(Finding(group, 1, frozenset({rank}), (), "") for group, rank in (("a", 0), ("b", 1), ("a", 2)))

    assert first_of_each_group(findings) == findings[:2]
