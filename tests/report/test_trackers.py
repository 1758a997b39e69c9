"""The verdict in the program's own records: written by their own libraries, within a limit, and without any say."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rankscope.diagnosis.verdict import Culprit, Verdict, Where
from rankscope.evidence.pages import read_page
from rankscope.probe.page import Page
from rankscope.report.notices import trackers

HANG = Verdict(
    schema=2,
    outcome="hang",
    cause="collective-skipped",
    certainty="proven",
    culprits=(Culprit(1, "gpu-1", 4, "rank", Where("/home/user/train.py", 88, "main"), "waits"),),
    victims=(0, 2),
    headline="rank 1 skipped the barrier: password=hunter2hunter2",
    because=("rank 0 entered all_reduce 7",),
    fix=("move the call",),
    world_size=3,
    retry="no",
)
STUB = """
class Api:
    def __init__(self, overrides, timeout):
        self.base = overrides["base_url"]
    def run(self, path):
        return Run(f"{self.base} {path}")
class Run:
    def __init__(self, name):
        self.name, self.summary = name, Summary()
        self.summary.run = self
class Summary(dict):
    def update(self):
        import json, os
        open(os.environ["TOLD"], "w").write(json.dumps([self.run.name, dict(self)]))
"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def page_with(pages: Path, *told: tuple[str, str, str]) -> Path:
    path = pages / "0-77.page"
    page = Page(str(path), 0)
    for each in told:
        page.tracker(*each)
    return path


def stub(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    (tmp_path / f"{name}.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path), "TOLD": str(tmp_path / "told")}


def test_each_record_is_kept_once_and_never_becomes_evidence(pages: Path) -> None:
    path = page_with(pages, ("mlflow", "http://user:secret@host", "9"), ("mlflow", "http://user:secret@host", "9"))
    assert trackers.trackers_of([path]) == [("mlflow", "http://user:secret@host", "9")]
    assert "secret" not in repr(read_page(path).progress)


def test_tensorboard_shows_the_verdict_as_text(pages: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    page_with(pages, ("tensorboard", str(tmp_path / "board"), ""))
    trackers.leave_in_trackers(HANG, pages, os.environ)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    (shown,) = events.Tensors("rankscope/verdict/text_summary")
    text = shown.tensor_proto.string_val[0].decode()
    assert "HANG, proven: collective-skipped" in text
    assert "hunter2hunter2" not in text


def test_run_that_is_sent_gets_a_summary_and_an_offline_one_a_file(pages: Path, tmp_path: Path) -> None:
    place = tmp_path / "wandb/files"
    place.mkdir(parents=True)
    page_with(pages, ("wandb", "https://api.example", "me/demo/9"), ("wandb-offline", str(place), "10"))
    trackers.leave_in_trackers(HANG, pages, stub(tmp_path, "wandb", STUB))
    run, summary = json.loads((tmp_path / "told").read_text())
    assert (run, summary["rankscope/cause"]) == ("https://api.example me/demo/9", "collective-skipped")
    assert "hunter2hunter2" not in summary["rankscope/headline"]
    assert json.loads((place / "rankscope-verdict.json").read_text())["cause"] == "collective-skipped"


def test_mlflow_keeps_the_verdict_with_its_run(pages: Path, tmp_path: Path) -> None:
    text = """
import json, os
class MlflowClient:
    def __init__(self, tracking_uri):
        self.told = [tracking_uri]
    def set_tag(self, run, name, value):
        self.told.append([run, name, value])
    def log_text(self, run, text, path):
        open(os.environ["TOLD"], "w").write(json.dumps([*self.told, [run, path, json.loads(text)["cause"]]]))
"""
    page_with(pages, ("mlflow", "sqlite:///x.db", "9"))
    trackers.leave_in_trackers(HANG, pages, stub(tmp_path, "mlflow", text))
    told = json.loads((tmp_path / "told").read_text())
    assert told[0] == "sqlite:///x.db"
    assert ["9", "rankscope.outcome", "hang"] in told
    assert told[-1] == ["9", "rankscope/verdict.json", "collective-skipped"]


@pytest.mark.parametrize(
    ("library", "said"),
    [("import time; time.sleep(60)", "no answer within 0.5 s"), ("raise OSError('refused')", "OSError: refused")],
)
def test_service_that_hangs_or_refuses_is_told_in_one_line(
    library: str,
    said: str,
    pages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trackers, "LIMIT_S", 0.5 if "sleep" in library else 30.0)
    page_with(pages, ("wandb", "https://api.example", "me/demo/9"))
    began = time.monotonic()
    trackers.leave_in_trackers(HANG, pages, stub(tmp_path, "wandb", library))
    assert time.monotonic() - began < 25
    told = capsys.readouterr().err
    assert f"W&B: {said}; the verdict is not in its run" in told
    assert told.count("\n") == 1


def test_job_that_ended_well_and_a_person_who_does_not_want_it_leave_no_trace(pages: Path, tmp_path: Path) -> None:
    from msgspec.structs import replace

    page_with(pages, ("tensorboard", str(tmp_path / "board"), ""))
    trackers.leave_in_trackers(replace(HANG, outcome="ok", cause=None), pages, os.environ)
    trackers.leave_in_trackers(HANG, pages, {**os.environ, "RANKSCOPE_RECORDS": "0"})
    assert not (tmp_path / "board").exists()
