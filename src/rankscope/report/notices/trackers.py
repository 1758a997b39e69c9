"""The verdict in records that the program itself keeps: its run in Weights & Biases or MLflow, TensorBoard's folder.

Their libraries are imported in processes of their own, with a short limit: whatever they do there, the outcome stands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.pages import read_page
from rankscope.mask import mask_text, mask_values
from rankscope.report.live import say
from rankscope.report.notices.bodies import title
from rankscope.report.plain_text import plain

LIMIT_S = 15.0
"""For all of them together: a library is imported, and a service asked."""
OFF_VARIABLE = "RANKSCOPE_RECORDS"
"""`0`: leave the program's own records alone."""
_MOST = 4
_NAMES = {"wandb": "W&B", "wandb-offline": "W&B", "mlflow": "MLflow", "tensorboard": "TensorBoard"}
_WRITER = Path(__file__).with_name("tracker_writer.py")

Tracker = tuple[str, str, str]
"""Kind, place, run."""


def leave_in_trackers(verdict: Verdict, pages: Path, environment: Mapping[str, str]) -> None:
    """Only where the program used one, and the job did not end well. What cannot be written is told, no more."""
    if verdict.outcome == "ok" or environment.get(OFF_VARIABLE) == "0":
        return
    found = trackers_of(pages.glob("*.page"))
    started = [(tracker, _start(tracker, verdict, environment)) for tracker in found[:_MOST]]
    deadline = time.monotonic() + LIMIT_S
    for (kind, _, _), process in started:
        problem = _finish(process, deadline)
        if problem is not None:
            say(f"{_NAMES[kind]}: {mask_text(problem)}; the verdict is not in its run")


def trackers_of(pages: Iterable[Path]) -> list[Tracker]:
    """Of all processes, each once, those of the newest process first."""
    found: dict[Tracker, float] = {}
    for page in pages:
        try:
            content = read_page(page, newest_calls=0)
        except EvidenceError:
            continue
        found |= {tracker: content.started_at for tracker in content.trackers if tracker[0] in _NAMES}
    return sorted(found, key=lambda tracker: -found[tracker])


def _start(tracker: Tracker, verdict: Verdict, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    kind, place, run = tracker
    lines = [verdict.headline, *verdict.because[:6], *(f"fix: {text}" for text in verdict.fix[:2])]
    told = {
        "kind": kind,
        "place": place,
        "run": run,
        "fields": {
            "outcome": verdict.outcome,
            "cause": verdict.cause or "",
            "certainty": verdict.certainty,
            "retry": verdict.retry,
            "culprits": ",".join(str(culprit.rank) for culprit in verdict.culprits if culprit.rank is not None),
            "headline": plain(mask_text(verdict.headline)),
        },
        "text": mask_text("\n\n".join((f"**{plain(title(verdict))}**", *map(plain, lines)))),
        "verdict": json.dumps(mask_values(json.loads(verdict_to_json(verdict))), indent=1),
    }
    process = subprocess.Popen(
        [sys.executable, str(_WRITER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**environment, "WANDB_SILENT": "true", "TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(told).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already, and its code says so
    process.stdin = None
    return process


def _finish(process: subprocess.Popen[bytes], deadline: float) -> str | None:
    with process:
        try:
            _, said = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"no answer within {LIMIT_S:g} s"
    if process.returncode == 0:
        return None
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    return last[0][:300] if last else f"the writer ended with code {process.returncode}"
