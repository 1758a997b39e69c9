"""The files that a trainer leaves of a step that was not finite, read as evidence. Nothing in a file is run.

Torch is not needed, nor, for files of `rankscope train`, numpy.
Three forms: `nan_grad_step_N.pt` (a zip of torch.save), `nan_debug_step_N.pkl` (a pickle with numpy arrays under
`parameters` and `gradients`) and `nan_debug_step_N.safetensors`.
"""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.flight import MOST_RANKS
from rankscope.evidence.model import SCHEMA, Evidence, Frame, NonFinite, Progress, RankEvidence
from rankscope.evidence.readers.in_child import bounded_memory, within
from rankscope.evidence.regular import open_regular

_LARGEST_HEADER = 64 << 20
_NAMED = 16
_MARK = b"incident"
_HEAD = 1 << 14
_LEAST_TIME_S = 10.0
_BYTES_A_SECOND = 10 << 20


def is_nan_dump(path: Path) -> bool:
    """Told by the content, not by the name."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except (OSError, EvidenceError):
        return False
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5:
        return _MARK in head or (b"parameters" in head and b"numpy" in head)
    if head[:4] == b"PK\x03\x04":
        return b"data.pkl" in head and _MARK in head
    return head[8:9] == b"{" and b"__metadata__" in head and _MARK in head


def read_nan_dump(path: Path) -> Evidence:
    """The evidence in one such file; EvidenceError says why there is none."""
    try:
        size = path.stat().st_size
        found = within(_LEAST_TIME_S + size / _BYTES_A_SECOND, partial(_read_bounded, path, size))
    except OSError as error:  # a TimeoutError is one
        why = error.strerror or "reading it takes too long: no trainer writes that"
        raise EvidenceError(f"'{path}' cannot be read as a step that was not finite: {why}") from error
    except EOFError as error:
        raise EvidenceError(f"'{path}': the reader died of it, no trainer writes that") from error
    if isinstance(found, str):
        raise EvidenceError(f"'{path}' cannot be read as a step that was not finite: {found}")
    return found


def _read_bounded(path: Path, size: int) -> Evidence | str:
    """Within the child, or why not."""
    try:
        with bounded_memory(size):
            return _read(path)
    except MemoryError:
        return "it asks for more memory than a step can need"
    except Exception as error:  # noqa: BLE001  a broken pickle or zip raises nearly anything
        return f"{error or type(error).__name__}"[:300]


def _read(path: Path) -> Evidence:
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PK\x03\x04":
        incident = _of_zip(path)
    elif head[:1] == b"\x80":
        content = _of_pickle(path)
        if "incident" not in content:
            return replace(_evidence(path, _told_by_arrays(content)), world_size=0)  # which nobody has told
        incident = content["incident"]
    else:
        incident = _of_safetensors(path)
    return _evidence(path, incident)


def read_arrays(path: Path) -> dict[str, Any]:
    """All of a pickle with numpy arrays; only numpy's own constructors are called. Needs numpy."""
    with path.open("rb") as file:
        content = _ArraysOnly(file).load()
    if not isinstance(content, dict) or not {"parameters", "gradients"} <= content.keys():
        raise ValueError("it has no parameters and gradients")
    return content


class _ArraysOnly(pickle.Unpickler):
    _ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "_frombuffer", "scalar"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _Nothing:
    """Stands for every object that only numpy or torch could make."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass


class _PlainOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:  # noqa: ARG002
        return _Nothing

    def persistent_load(self, _pid: Any) -> Any:
        return _Nothing()


def _of_pickle(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        content = _PlainOnly(file).load()
    if isinstance(content, dict) and "incident" in content:
        return content
    try:
        return read_arrays(path)
    except ImportError as error:
        raise ValueError("numpy is needed to read it (pip install numpy)") from error


def _of_zip(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(name) as file:
            content = _PlainOnly(file).load()
    incident: dict[str, Any] = json.loads(content["incident"])
    return incident


def _of_safetensors(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header = _header(file)
    incident: dict[str, Any] = json.loads(header["__metadata__"]["incident"])
    return incident


def _header(file: IO[bytes]) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _LARGEST_HEADER:
        raise ValueError("no header of safetensors")
    header: dict[str, Any] = json.loads(file.read(size))
    return header


def _told_by_arrays(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of a dump by another trainer: only which tensors are bad is known, not where it began."""
    import numpy

    bad: dict[str, list[dict[str, Any]]] = {"parameters": [], "gradients": []}
    for part, found in bad.items():
        for name, array in content[part].items():
            if not numpy.isfinite(array).all():
                found.append({"name": str(name), "nan": int(numpy.isnan(array).sum())})
    rank = {"rank": 0, "bad_parameters": bad["parameters"], "bad_gradients": bad["gradients"], "samples": []}
    kind = "parameter" if bad["parameters"] and not bad["gradients"] else "gradient"
    step = content.get("step", 0)
    return {"step": step if isinstance(step, int) else 0, "kind": kind, "origins": [], "ranks": [rank]}


def _evidence(path: Path, incident: Mapping[str, Any]) -> Evidence:
    at = path.stat().st_mtime
    ranks = tuple(_rank(incident, rank, at) for rank in incident["ranks"])
    if not ranks or not all(0 <= rank.rank < MOST_RANKS for rank in ranks):
        raise ValueError("it names ranks that no job has")
    return Evidence(
        schema=SCHEMA,
        collected_at=at,
        started_at=at,
        trigger="files",
        world_size=max(rank.rank for rank in ranks) + 1,
        ranks=ranks,
        missing={"stacks": f"only {path.name} was given"},
    )


def _rank(incident: Mapping[str, Any], rank: Mapping[str, Any], at: float) -> RankEvidence:
    number, step = int(rank["rank"]), int(incident["step"])
    began = number in incident["origins"]
    bad = rank["bad_parameters"] or rank.get("bad_inputs") or rank["bad_gradients"] or incident.get("bad_gradients", [])
    found = rank.get("first") or rank.get("first_backward")
    note = NonFinite(
        kind=str(incident["kind"]) if began or not incident["origins"] else "gradient",
        step=step,
        at=at,
        value="nan" if not bad or any(tensor.get("nan") for tensor in bad) else "inf",
        tensors=tuple(str(tensor["name"]) for tensor in bad[:_NAMED]),
        count=len(bad),
        local=began,
        detail=_detail(found),
        site=tuple(Frame(str(name), str(file), int(line), user=True) for file, line, name in found["frames"])
        if found
        else (),
    )
    progress = Progress("training", at, step, step, at, 0, 0, (), (), non_finite=(note,) if bad or began else ())
    return RankEvidence(number, number, "", 0, at, progress=progress)


def _detail(found: Mapping[str, Any] | None) -> str:
    words = []
    if found:
        kind = {"output": "the output of", "input": "what was given to", "gradient": "the gradient at the output of"}
        words.append(f"first {kind.get(found['what'], 'at')} {found['module'] or 'the model itself'} ({found['kind']})")
        words.append(f"samples {', '.join(str(sample) for sample in found['samples'][:_NAMED])}")
    return "; ".join(words)
