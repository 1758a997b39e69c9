"""What a single line of a log tells about itself: which rank wrote it, and when."""

from __future__ import annotations

import calendar
import re
import time

TAG = re.compile(
    rb"^[ \t]*(?:"
    rb"\[(?:rank|Rank|RANK|default|trainer|worker|role)[ _:=-]?(\d{1,6})\]:?"  # torch, torchrun --tee, loggers
    rb"|(?:R|GPU|rank|Rank|RANK)[ _=-]?(\d{1,6})(?::|[ ]?\|)"  # rankscope run, loggers
    rb"|\[\d+,(\d{1,6})\]<std(?:out|err|diag)>:?"  # mpirun --tag-output
    rb")",
    re.MULTILINE,
)
SRUN_TAG = re.compile(rb"^[ \t]*(\d{1,6}): ", re.MULTILINE)
"""`srun -l`. So plain that it counts only where most lines of a file have it."""
WITHIN_TAG = re.compile(
    rb"^[^\n]{0,120}?\[(?:[A-Za-z][\w.-]{0,40}[:/|])?(?:R|[Rr]ank|RANK|GPU)[ _:=-]?(\d{1,6})(?:/\d{1,6})?\]",
    re.MULTILINE,
)
"""A logger's own, after its time and level: `[BASELINE:R0]`, `[Rank 0]`, and `[R0/2]` as in our `stages.log`. Of a
message of several lines the first alone has it."""
_INNER_TAG = re.compile(
    rb"\[(?:PG[^\]]{0,60}|[Gg]lobal )?[Rr](?:ank|ANK)[ :=_-]{0,2}(\d{1,6})\]"
    rb"|\b(?:global_|GLOBAL_)?(?:rank|RANK)[=:] ?(\d{1,6})\b"
)
_HEAD = 200

_DATED = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:\s?(Z|[+-]\d\d:?\d\d)(?![\d:]))?"
)
_GLOG = re.compile(r"(?:^|[\s\[\]:])[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}),? (\d\d):(\d\d):(\d\d)")
_CLOCK = re.compile(r"^\W{0,3}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def inner_rank(line: bytes) -> int | None:
    """The rank that a line names as its writer after its time or level: `[PG 0 (default_pg) Rank 3]`, `rank=3`."""
    match = _INNER_TAG.search(line, 0, _HEAD)
    return int(match[1] or match[2]) if match else None


def time_of(line: str, near: float) -> float | None:
    """When a line says it was written. `near`: when its file was written last, for what a line leaves out, as the year.

    Times without a zone are read as times of this machine.
    """
    head = line[:_HEAD]
    if match := _DATED.search(head):
        year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
        return _epoch(year, month, day, hour, minute, second, match[7], match[8])
    if match := _GLOG.search(head):
        month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5))
        return _dated_near(near, month, day, hour, minute, second, match[6])
    if match := _SYSLOG.search(head):
        month = _MONTHS.index(match[1]) + 1
        return _dated_near(near, month, int(match[2]), int(match[3]), int(match[4]), int(match[5]), None)
    if match := _CLOCK.match(head):
        today = time.localtime(near)
        hour, minute, second = map(int, match.group(1, 2, 3))
        at = _epoch(today.tm_year, today.tm_mon, today.tm_mday, hour, minute, second, match[4], None)
        # A clock that is ahead of the end of the file belongs to the day before.
        return at if at is None or at <= near + 3600 else at - 86400
    return None


def _dated_near(
    near: float, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> float | None:
    year = time.localtime(near).tm_year
    at = _epoch(year, month, day, hour, minute, second, fraction, None)
    if at is not None and at > near + 86400:
        return _epoch(year - 1, month, day, hour, minute, second, fraction, None)
    return at


def _epoch(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None, zone: str | None
) -> float | None:
    if not (1970 <= year < 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    parts = (year, month, day, hour, minute, second, 0, 0, -1)
    more = int(fraction) / 10 ** len(fraction) if fraction else 0.0
    if zone is None:
        return time.mktime(parts) + more
    shift = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "")
        shift = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
    return calendar.timegm(parts) - shift + more
