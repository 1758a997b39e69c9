"""Where the surroundings of a job show why it ended: a pod's termination log, Slurm's comment, GitHub's annotations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

from rankscope.diagnosis.verdict import Verdict
from rankscope.mask import mask_text
from rankscope.report.live import say
from rankscope.report.notices.bodies import title
from rankscope.report.plain_text import plain

LOG_VARIABLE = "RANKSCOPE_TERMINATION_LOG"
"""Names the file where the pod's terminationMessagePath is another one."""
_TERMINATION_LOG = "/dev/termination-log"
_MOST_BYTES = 4096
"""Kubernetes keeps no more."""
_SLURM_S = 5.0
_MOST_OF_A_COMMENT = 400
_OURS = "rankscope: "
_MILD = frozenset({"slow", "interrupted"})


def leave_records(verdict: Verdict, environment: Mapping[str, str]) -> None:
    """Each where the environment says that somebody looks there. What cannot be written is told, no more."""
    if verdict.outcome == "ok":
        return
    places: tuple[Callable[[Verdict, Mapping[str, str]], str | None], ...] = (_github, _pod, _slurm)
    for place in places:
        try:
            problem = place(verdict, environment)
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
        if problem is not None:
            say(mask_text(problem))


def _github(verdict: Verdict, environment: Mapping[str, str]) -> str | None:
    if environment.get("GITHUB_ACTIONS") == "true":
        # The runner reads both streams; standard output may be a program's.
        sys.stderr.write(f"{github_line(verdict, environment.get('GITHUB_WORKSPACE', ''))}\n")
        sys.stderr.flush()
    return None


def github_line(verdict: Verdict, workspace: str) -> str:
    """`::error file=train.py,line=88,title=...::headline`, which GitHub shows beside that line of the code."""
    where = next((culprit.where for culprit in verdict.culprits if culprit.where is not None), None)
    properties = {"title": f"rankscope: {title(verdict)}"}
    if where is not None:
        inside = workspace and where.file.startswith(f"{workspace.rstrip('/')}/")
        file = os.path.relpath(where.file, workspace) if inside else where.file
        properties = {"file": file, "line": str(where.line), **properties}
    kind = "warning" if verdict.outcome in _MILD else "error"
    fix = f"\nfix: {verdict.fix[0]}" if verdict.fix else ""
    text = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {text}::{_escaped(f'{verdict.headline}{fix}')}"


def _escaped(text: str, also: str = "") -> str:
    text = mask_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    for character in also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _pod(verdict: Verdict, environment: Mapping[str, str]) -> str | None:
    """What `kubectl describe pod` shows as the message of the container that ended."""
    path = environment.get(LOG_VARIABLE)
    if path is None and "KUBERNETES_SERVICE_HOST" in environment and os.path.isfile(_TERMINATION_LOG):
        path = _TERMINATION_LOG
    if not path:
        return None
    fixes = [f"fix: {text}" for text in verdict.fix[:2]]
    lines = [f"{title(verdict)} (retry: {verdict.retry})", verdict.headline, *verdict.because[:6], *fixes]
    content = mask_text("\n".join(map(plain, lines))).encode()
    try:
        with open(path, "wb") as file:
            file.write(content[: _MOST_BYTES - 1].decode(errors="ignore").encode() + b"\n")
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return None


def _slurm(verdict: Verdict, environment: Mapping[str, str]) -> str | None:
    """The job's comment, which `scontrol show job` and `sacct --format=jobid,comment` show; a comment of the user
    stays."""
    job = environment.get("SLURM_JOB_ID", "")
    scontrol = shutil.which("scontrol", path=environment.get("PATH"))
    if not job or scontrol is None:
        return None
    shown = _asked([scontrol, "show", "job", "--oneliner", job])
    known = re.search(r"(?:^|\s)Comment=(.*?)(?=\s\w+=|$)", shown)
    if known and known[1] not in ("", "(null)") and not known[1].startswith(_OURS):
        return None
    comment = plain(mask_text(f"{_OURS}{title(verdict)} (retry: {verdict.retry}): {verdict.headline}"))
    _asked([scontrol, "update", f"JobId={job}", f"Comment={comment[:_MOST_OF_A_COMMENT]}"])
    return None


def _asked(command: list[str]) -> str:
    """Its output. A cluster that does not answer or refuses is no news about this job."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SLURM_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return ended.stdout
