"""Serves torch's flight recorder on a Unix socket, from a C++ thread: it answers while Python is stuck."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from rankscope.probe.page import RECORDER_SERVED, Page

_ERROR_LEVEL = 2
_kept: list[Any] = []


def start(page: Page) -> None:
    """Once per process; the socket lies beside the page."""
    if _kept:
        return
    from torch._C._distributed_c10d import _WorkerServer

    level = _cpp_log_level()
    before = level.value if level is not None else 0
    if level is not None and before < _ERROR_LEVEL:
        level.value = _ERROR_LEVEL  # the server announces itself as a warning; the program's output stays as it is
    try:
        server = _WorkerServer(page.path.removesuffix(".page") + ".torch.sock")
    finally:
        if level is not None:
            level.value = before
    _kept.append(server)
    # Never destroyed: its destructor would print, and would wait for requests in flight at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    page.raise_flag(RECORDER_SERVED)


def _cpp_log_level() -> ctypes.c_int | None:
    import torch

    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
