"""The corpus: what was seen of each zoo case, kept so that the diagnosis can be tried on it again, on any machine."""

from __future__ import annotations

import lzma
import os
import re
import socket
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from expectation import CASES, NCCL_CASES, STRANGERS, Case
from judge import GotVerdict
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import Evidence
from rankscope.evidence.store import load_evidence

RECORDED = Path(__file__).resolve().parent / "recorded"
JOB = "/job"
"""Stands for the folder of the program in every recording."""
KINDS = {CASES: "gloo", NCCL_CASES: "nccl", STRANGERS: "strangers"}
"""Folder of cases → folder of their recordings."""
_MOST_LOOKS = 4
_REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Look:
    """One evidence, and whether the verdict was due with it. At the others nothing wrong may be said."""

    due: bool
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Recording:
    case: str
    looks: tuple[Look, ...]


def recording_path(name: str, root: Path = CASES, into: Path | None = None) -> Path:
    return (into or RECORDED / KINDS[root]) / f"{name}.json.xz"


def save_recording(recording: Recording, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(to_json(recording), preset=9))


def load_recording(path: Path) -> Recording:
    return msgspec.json.decode(lzma.decompress(path.read_bytes()), type=Recording)


def looks_of(case: Case, folder: Path) -> tuple[Look, ...]:
    """From the folder of a run under `recorder.py`: what the verdict was drawn from, and some looks before it."""
    due = _due(folder / "run")
    looks = sorted((folder / "looks").glob("look-*"))
    kept = [_masked(load_evidence(look), case, folder) for look in looks]
    if due is not None:
        final = _masked(due, case, folder)
        before = [evidence for evidence in kept if evidence.collected_at < final.collected_at]
        return (*(Look(False, evidence) for evidence in _spread(before)), Look(True, final))
    return tuple(Look(False, evidence) for evidence in _spread(kept))


def _due(run: Path) -> Evidence | None:
    if not (run / "verdict.json").exists():
        return None  # it was ended before it had one
    verdict = msgspec.json.decode((run / "verdict.json").read_bytes(), type=_Told)
    if verdict.outcome == "ok" or not (run / verdict.evidence / "evidence.json").exists():
        return None
    return load_evidence(run / verdict.evidence)


class _Told(GotVerdict, frozen=True):
    evidence: str = "evidence"


def _spread(looks: list[Evidence]) -> list[Evidence]:
    """The first, the last and some between."""
    if len(looks) <= _MOST_LOOKS:
        return looks
    return [looks[round(at * (len(looks) - 1) / (_MOST_LOOKS - 1))] for at in range(_MOST_LOOKS)]


def _masked(evidence: Evidence, case: Case, folder: Path) -> Evidence:
    text = to_json(evidence).decode()
    for path, mask in _places(case, folder):
        text = text.replace(path, mask)
    host = socket.gethostname()
    text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])", "node", text)
    return msgspec.json.decode(text, type=Evidence)


def _places(case: Case, folder: Path) -> list[tuple[str, str]]:
    """Longest first, so that a folder is masked before the one that it lies in."""
    known = {
        str(case.folder): JOB,
        str(folder): "/scratch",
        str(_REPOSITORY): "/rankscope",
        sys.prefix: "/venv",
        sys.base_prefix: "/python",
        sysconfig.get_path("purelib"): "/venv/lib/python/site-packages",
        tempfile.gettempdir(): "/tmp",
        os.path.expanduser("~"): "/home",
    }
    found = {path: mask for path, mask in known.items() if len(path) > 1}
    found |= {os.path.realpath(path): mask for path, mask in found.items()}
    return sorted(found.items(), key=lambda pair: -len(pair[0]))
