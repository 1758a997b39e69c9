"""What a stack says by its library frames: which module was called, and which well-known wait it is."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import takewhile

from rankscope.diagnosis.views import innermost_user_frame, python_frames
from rankscope.evidence.model import ChildProcess, Evidence, Frame, StackSample, Thread

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
    return None if called is None else dotted(called)


def innermost_call(frames: tuple[Frame, ...]) -> str | None:
    """The library function that the thread stands in itself, as `socket.SocketIO.readinto`; None in the user's code."""
    inner = python_frames(frames)
    return dotted(inner[0]) if inner and not inner[0].user else None


def dotted(frame: Frame) -> str | None:
    """`urllib.request.urlopen` for a frame of a library; None for one that lies in no known folder of libraries."""
    match = _LIBRARY.match(frame.file)
    if match is None:
        return None
    return f"{match[1].replace('/', '.').removesuffix('.__init__')}.{frame.function}"


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


_NOT_TELLING = (
    *("ffi_", "_call_function_pointer", "_ctypes", "PyCFuncPtr", "__", "_Py", "Py", "syscall", "futex", "do_futex"),
    *("0x", "clone", "start_thread"),
)


def native_function(stacks: tuple[StackSample, ...], tid: int) -> str | None:
    """The innermost native function of a thread with a telling name, where native frames were taken."""
    for sample in reversed(stacks):
        for thread in sample.threads:
            if thread.tid != tid or not thread.frames or not thread.frames[0].native:
                continue
            inner = takewhile(lambda frame: frame.native, thread.frames)
            return next((frame.function for frame in inner if not frame.function.startswith(_NOT_TELLING)), None)
    return None


def other_threads(threads: tuple[Thread, ...]) -> tuple[Thread, ...]:
    """Threads beside the main one that run the user's code."""
    return tuple(thread for thread in threads if not thread.main and innermost_user_frame(thread.frames) is not None)
