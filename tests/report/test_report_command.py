"""`rankscope report`: the same incident as a page, as markdown, and in the formats of other viewers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace
from recorded_incidents import TEN, incident, recorded

from rankscope.cli import main
from rankscope.evidence.store import save_evidence
from rankscope.report.conclude import conclude
from rankscope.report.markdown import markdown
from rankscope.report.trace import chrome_trace, speedscope
from rankscope.report.views.incident import incident_of

BRANCH = TEN[0]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    save_evidence(recorded(BRANCH), folder / "evidence")
    (folder / "run.json").write_text("{}")
    return folder


def test_page_is_made_in_the_folder_of_the_run(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder)]) == 0
    made = run_folder / "report.html"
    assert "if rank == 0" in made.read_text()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert "report.html" in capsys.readouterr().err


def test_page_that_lies_in_the_folder_is_no_evidence(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(run_folder)])
    capsys.readouterr()
    assert main(["diagnose", str(run_folder)]) == 1
    (run_folder / "evidence" / "evidence.json").write_text("{ cut off")
    assert main(["diagnose", str(run_folder)]) == 3
    assert "report.html" not in capsys.readouterr().err
    assert main(["diagnose", str(run_folder / "report.html")]) == 3
    assert "written beside the evidence" in capsys.readouterr().err


def test_page_of_other_files_goes_to_this_folder(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run_folder / "evidence" / "evidence.json")]) == 0
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("form", ["md", "text", "json", "trace", "speedscope"])
def test_other_forms_go_to_standard_output(
    run_folder: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["report", str(run_folder), "--format", form]) == 0
    out = capfdbinary.readouterr().out
    assert b"evaluate" in out
    assert not (run_folder / "report.html").exists()
    if form in ("json", "trace", "speedscope"):
        json.loads(out)


def test_output_names_the_file(run_folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(run_folder), "--format", "trace", "--output", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        (["{run}", "--format", "pdf"], "invalid choice: 'pdf'"),
        (["{run}", "--output", "{run}/no/such/folder/x.html"], "cannot be written: No such file or directory"),
    ],
)
def test_mistake_is_one_line(
    run_folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(word.replace("{run}", str(run_folder)) for word in arguments)]) == 2
    assert said in capsys.readouterr().err


def test_markdown_says_the_verdict_with_both_places_and_the_fix() -> None:
    text = markdown(incident(BRANCH))
    assert text.startswith("### HANG, proven after 2.8 s: collective-skipped\n")
    assert ">  54          logits = model(images)" in text.replace("> 54", ">  54")
    assert "? 81      if rank == 0:" in text
    assert "**Fix**" in text
    assert "only rank 0 took this branch: `if rank == 0` (train.py:81)" in text
    assert "<details><summary>last output of rank 0</summary>" in text
    assert "- pytorch/pytorch#54059" in text


def test_markdown_masks_secrets_and_keeps_the_job_from_ending_its_own_block() -> None:
    evidence = recorded(BRANCH)
    told = ("token=hf_" + "x1Y2" * 8, "```", "</details>", "password: hunter2hunter2")
    ranks = tuple(replace(seen, output_tail=told) for seen in evidence.ranks)
    text = markdown(incident_of(conclude(evidence), replace(evidence, ranks=ranks)))
    assert "x1Y2" not in text
    assert "hunter2" not in text
    assert "````text" in text, "the fence is longer than any that the job wrote"


def test_markdown_of_prose_cannot_become_markup() -> None:
    evidence = recorded(BRANCH)
    verdict = replace(conclude(evidence), headline="rank 0 raised <img src=x> [a](b) *c* _d_")
    text = markdown(incident_of(verdict, evidence))
    assert r"raised \<img src=x\> \[a\](b) \*c\* \_d\_" in text


def test_trace_holds_every_rank_with_its_calls_and_collectives() -> None:
    about = incident(BRANCH)
    events = json.loads(chrome_trace(about))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0 (culprit)", "rank 1 (victim)", "rank 2 (victim)"}
    pieces = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in pieces)
    open_at_the_end = max(
        (event for event in pieces if event["pid"] == 1), key=lambda event: event["ts"] + event["dur"]
    )
    assert (open_at_the_end["ts"] + open_at_the_end["dur"]) / 1e6 == pytest.approx(23.9, abs=0.1)
    assert {event["pid"] for event in pieces if event["name"] == "barrier 82"} == {1, 2}
    assert [event["pid"] for event in events if event["name"] == "last progress"] == [0]


def test_speedscope_weighs_stacks_by_ranks() -> None:
    made = json.loads(speedscope(incident(BRANCH)))
    (profile,) = made["profiles"]
    assert sum(profile["weights"]) == profile["endValue"] == 3
    assert sorted(profile["weights"]) == [1, 2]
    names = [frame["name"] for frame in made["shared"]["frames"]]
    innermost = {names[sample[-1]] for sample in profile["samples"]}
    assert all(names[sample[0]] == "<module>" for sample in profile["samples"]), "the outermost frame comes first"
    assert len(innermost) == 2
