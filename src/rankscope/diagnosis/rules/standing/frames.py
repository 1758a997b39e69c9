"""What a stack says by its library frames: which module was called, and which well-known wait it is."""

from __future__ import annotations

import re
from collections.abc import Collection

from rankscope.diagnosis.views import innermost_user_frame, python_frames
from rankscope.evidence.model import ChildProcess, Evidence, Frame, Thread

_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3\.\d+t?(?:/lib-dynload)?)/(.+)\.py$")


def in_module(frame: Frame, module: str, functions: Collection[str] | None = None) -> bool:
    """Whether a library frame lies in a file or folder such as `threading.py` or `torch/_dynamo/`."""
    if frame.user or frame.native or (functions is not None and plain_name(frame) not in functions):
        return False
    return f"/{module}" in frame.file if module.endswith("/") else frame.file.endswith(f"/{module}")


def plain_name(frame: Frame) -> str:
    """Without the class: Python 3.11 and newer give stacks as `Thread.join`, tracebacks as `join`."""
    return frame.function.rpartition(".")[2]


def library_call(frames: tuple[Frame, ...]) -> str | None:
    """The library function that the innermost user frame called, as `urllib.request.urlopen`."""
    called: Frame | None = None
    for frame in python_frames(frames):
        if frame.user:
            break
        called = frame
    else:
        return None
    if called is None:
        return None
    match = _LIBRARY.match(called.file)
    if match is None:
        return None
    module = match[1].replace("/", ".").removesuffix(".__init__")
    return f"{module}.{called.function}"


def package_of(frame: Frame) -> str | None:
    """The installed package that a frame lies in; None for the standard library, the user's code and native frames."""
    _, installed, path = frame.file.rpartition("-packages/")
    return path.partition("/")[0].removesuffix(".py") if installed and not frame.native else None


def above_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The library frames inside the innermost user frame, innermost first; all without a user frame."""
    inner: list[Frame] = []
    for frame in python_frames(frames):
        if frame.user:
            break
        inner.append(frame)
    return tuple(inner)


def own_frames(child: ChildProcess) -> tuple[Frame, ...] | None:
    """The frames of a child's main thread, without those inherited by fork; None without a stack."""
    if not child.stacks:
        return None
    thread = next((thread for thread in child.stacks[-1].threads if thread.main), None)
    return None if thread is None else without_inherited(thread.frames)


def without_inherited(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    for at, frame in enumerate(frames):
        if in_module(frame, "torch/utils/data/_utils/worker.py", {"_worker_loop"}) or in_module(
            frame, "multiprocessing/process.py", {"_bootstrap"}
        ):
            return frames[:at]
    return frames


def source_line(evidence: Evidence, frame: Frame | None) -> str:
    """The text of the frame's line; empty where the source is not in the evidence."""
    if frame is None:
        return ""
    for source in evidence.sources:
        if source.file == frame.file:
            lines = source.text.splitlines()
            at = frame.line - source.first_line
            return lines[at].strip() if 0 <= at < len(lines) else ""
    return ""


def other_threads(threads: tuple[Thread, ...]) -> tuple[Thread, ...]:
    """Threads beside the main one that run the user's code."""
    return tuple(thread for thread in threads if not thread.main and innermost_user_frame(thread.frames) is not None)
