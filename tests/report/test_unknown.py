"""Unknown is an answer: what shows nothing is not well, and the verdict says what is missing and how to get it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankscope.cli import main
from rankscope.evidence.model import SCHEMA, Evidence, Exit, RankEvidence
from rankscope.evidence.store import save_evidence

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/me/train.py", line 5, in main\n    f()\nValueError: no label\n'
)


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", "--json", str(path)])
    return code, json.loads(capsys.readouterr().out)


def rank(number: int, code: int | None) -> RankEvidence:
    ended = None if code is None else Exit(code, 1000.0, by_launcher=False)
    return RankEvidence(number, number, "vm", 100 + number, 900.0, exit=ended)


def evidence(*ranks: RankEvidence, trigger: str = "failure") -> Evidence:
    return Evidence(SCHEMA, 1000.0, 900.0, trigger, len(ranks), ranks)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run in which rank 1 raised."""
    folder = tmp_path / "run"
    for number, text in enumerate(("hello\n", TRACEBACK)):
        logs = folder / "logs" / "attempt_0" / str(number)
        logs.mkdir(parents=True)
        (logs / "stderr.log").write_text(text)
    (folder / "run.json").write_text('{"command": ["rankscope"]}')
    (folder / "ranks.json").write_text('{"0": 100, "1": 101}')
    verdict = {"schema": 2, "outcome": "crash", "culprits": [{"rank": 1}], "exit_codes": {"0": -15, "1": 1}}
    (folder / "verdict.json").write_text(json.dumps(verdict))
    save_evidence(evidence(rank(0, -15), rank(1, 1)), folder / "evidence" / "attempt_0")
    return folder


@pytest.mark.parametrize("content", ["hello world\n", "def main():\n    train()\n", "| a | b |\n| - | - |\n"])
def test_a_text_that_is_no_log_tells_nothing(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    code, verdict = diagnosed(file, capsys)
    assert (code, verdict["outcome"], verdict["cause"], verdict["certainty"]) == (3, "unknown", None, "possible")
    assert "names a rank" in verdict["headline"]
    assert verdict["next"]


def test_an_empty_folder_tells_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = diagnosed(tmp_path, capsys)
    assert (code, verdict["outcome"]) == (3, "unknown")
    assert "logs of the ranks" in str(verdict["next"])


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda _: b"", lambda data: b"\x00garbage" + data[::-1]])
@pytest.mark.parametrize("given", [".", "evidence/attempt_0", "evidence/attempt_0/evidence.json"])
def test_logs_are_read_in_place_of_damaged_evidence_and_that_is_said(
    damage: Any, given: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "evidence" / "attempt_0" / "evidence.json"
    file.write_bytes(damage(file.read_bytes()))
    code, verdict = diagnosed(run / given, capsys)
    assert (code, verdict["outcome"], [culprit["rank"] for culprit in verdict["culprits"]]) == (1, "crash", [1])
    assert "evidence.json" in str(verdict["refused"])
    assert "read instead" in str(verdict["notes"])


def test_a_run_that_was_judged_is_never_well_because_its_evidence_is_damaged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "logs" / "attempt_0" / "1" / "stderr.log").write_text("hello\n")
    corrupt = {"schema": 2, "outcome": "corrupt", "culprits": [{"rank": 1}], "exit_codes": {"0": 0, "1": 0}}
    (run / "verdict.json").write_text(json.dumps(corrupt))
    (run / "evidence" / "attempt_0" / "evidence.json").write_text('{"schema": 1, "collec')
    code, verdict = diagnosed(run, capsys)
    assert (code, verdict["outcome"], verdict["cause"]) == (3, "unknown", None)
    assert "the run's own verdict was CORRUPT" in verdict["headline"]
    assert "verdict.json" in str(verdict["next"])


def test_damaged_evidence_with_nothing_beside_it_is_unknown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "logs")
    (run / "verdict.json").unlink()
    (run / "evidence" / "attempt_0" / "evidence.json").write_text('{"schema": 1, "collec')
    code, verdict = diagnosed(run, capsys)
    assert (code, verdict["outcome"]) == (3, "unknown")
    assert "damaged" in str(verdict["because"])
    assert "nothing else lies" in str(verdict["notes"])


def test_logs_are_read_where_a_run_was_killed_before_it_wrote_anything_else(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "evidence")
    (run / "verdict.json").unlink()
    code, verdict = diagnosed(run, capsys)
    assert (code, verdict["outcome"], [culprit["rank"] for culprit in verdict["culprits"]]) == (1, "crash", [1])
    assert "was not written" in str(verdict["notes"])


@pytest.mark.parametrize("with_evidence", [True, False])
def test_a_run_that_ended_well_is_well_whatever_was_written_beside_its_verdict(
    with_evidence: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not with_evidence:
        shutil.rmtree(run / "evidence")
    told = {"schema": 2, "outcome": "ok", "exit_codes": {"0": 0, "1": 0}, "world_size": 2, "ended_at": 1000.0}
    (run / "verdict.json").write_text(json.dumps(told))
    code, verdict = diagnosed(run, capsys)
    assert (code, verdict["outcome"], verdict["certainty"]) == (0, "ok", "proven")
    assert verdict["exit_codes"] == {"0": 0, "1": 0}


def test_a_verdict_of_ok_without_the_codes_of_all_ranks_is_not_believed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "evidence")
    shutil.rmtree(run / "logs")
    (run / "verdict.json").write_text(json.dumps({"schema": 2, "outcome": "ok", "exit_codes": {"0": 0, "1": None}}))
    code, verdict = diagnosed(run, capsys)
    assert (code, verdict["outcome"]) == (3, "unknown")


def test_saved_evidence_in_which_nothing_is_seen_to_go_on_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_evidence(evidence(rank(0, None), rank(1, None), trigger="request"), tmp_path)
    assert diagnosed(tmp_path, capsys)[0] == 3
    save_evidence(evidence(rank(0, 0), rank(1, 0), trigger="end"), tmp_path)
    assert diagnosed(tmp_path, capsys)[0] == 0


def test_a_run_whose_ranks_were_stopped_for_a_hang_is_not_called_killed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "evidence")
    (run / "logs" / "attempt_0" / "1" / "stderr.log").write_text("hello\n")
    told = {"schema": 2, "outcome": "hang", "culprits": [{"rank": 1}], "exit_codes": {"0": -9, "1": -9}}
    (run / "verdict.json").write_text(json.dumps(told))
    code, verdict = diagnosed(run, capsys)
    assert verdict["cause"] != "killed"
    assert code != 0


def test_a_mistaken_path_is_one_line_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path / "nowhere")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_the_ranks_that_a_world_lacks_keep_it_from_being_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_evidence(replace(evidence(rank(0, 0), trigger="end"), world_size=2), tmp_path)
    assert diagnosed(tmp_path, capsys)[0] == 3
