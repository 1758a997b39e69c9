"""Tells by its content what a file is. Names decide nothing: people rename and redirect files as they like."""

from __future__ import annotations

import re
from enum import Enum

HEAD = 1 << 14

_PY_SPY = re.compile(rb"^Process \d+: .*\n(?:.*\n){0,3}?Python v\d", re.MULTILINE)
_FLIGHT = re.compile(rb'"(?:pg_config|pg_status|entries|comm_lib_version|nccl_version)"\s*:')
_EVIDENCE = re.compile(rb'^\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"collected_at"')
_VERDICT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"outcome"')
_RUN = re.compile(rb'^\s*\{\s*"command"\s*:\s*\[')
_ERROR = re.compile(rb'^\s*\{\s*"message"\s*:')
_THREADS = re.compile(rb'^\s*\[\s*\{\s*"pid"\s*:|^\s*\[\s*\{.{0,400}?"(?:os_thread_id|owns_gil)"\s*:', re.DOTALL)
_PAGE = re.compile(rb'^\s*<!doctype html>\s*<html lang="en">\s*<head>\s*<meta name="generator" content="rankscope')
_BINARY = {
    b"\x7fELF": "a program",
    b"PK\x03\x04": "a zip file, such as a checkpoint: no evidence",
    b"\x1f\x8b": "compressed with gzip: unpack it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first (unzstd)",
    b"BZh": "compressed with bzip2: unpack it first (bunzip2)",
    b"\xfd7zXZ": "compressed with xz: unpack it first (unxz)",
}


class FileKind(Enum):
    FLIGHT = "a flight-recorder dump"
    STACKS_TEXT = "py-spy's stacks"
    STACKS_JSON = "py-spy's stacks as JSON"
    ERROR = "torchrun's error file"
    EVIDENCE = "evidence of rankscope"
    LOG = "a log"
    NOT_EVIDENCE = "written by rankscope beside its evidence"


def kind_of(head: bytes) -> FileKind | str:
    """What the file that begins so is; a text says why it is nothing that can be read."""
    if not head.strip():
        return "is empty" if not head else "holds only blanks"
    for mark, words in _BINARY.items():
        if head.startswith(mark):
            return f"is {words}"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5:
        return FileKind.FLIGHT
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"
    # A machine that went down leaves some NUL bytes in its logs; a binary file is full of bytes no text has.
    odd = sum(head.count(byte) for byte in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06"))
    if odd * 10 > len(head):
        return "is a binary file of no known kind"
    if _PAGE.match(head):
        return FileKind.NOT_EVIDENCE
    start = head.lstrip()[:1]
    if start == b"{":
        return _kind_of_object(head)
    if start == b"[" and _THREADS.search(head):
        return FileKind.STACKS_JSON
    return FileKind.STACKS_TEXT if _PY_SPY.search(head) else FileKind.LOG


def _kind_of_object(head: bytes) -> FileKind:
    if _EVIDENCE.match(head):
        return FileKind.EVIDENCE
    if _VERDICT.match(head) or _RUN.match(head):
        return FileKind.NOT_EVIDENCE
    if _FLIGHT.search(head):
        return FileKind.FLIGHT
    if _ERROR.match(head) and head.count(b"\n{") == 0:
        return FileKind.ERROR
    return FileKind.LOG
