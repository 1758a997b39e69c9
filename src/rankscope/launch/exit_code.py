"""The exit code of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rankscope.diagnosis.retry import will_fail_again
from rankscope.diagnosis.verdict import Verdict
from rankscope.launch.events import End, Reason
from rankscope.launch.run_state import all_well

HANG, BAD_NUMBERS, UNKNOWN = 75, 76, 1
FAILS_AGAIN, ELSEWHERE = 81, 82
"""With `--retry-codes`, for schedulers: the same command will fail again, and it may pass on another host."""


def code_for_scheduler(verdict: Verdict, code: int) -> int:
    """What `--retry-codes` makes of the exit code; as it was where the verdict does not tell."""
    if code == 0 or verdict.outcome in ("ok", "interrupted"):
        return code
    if will_fail_again(verdict):
        return FAILS_AGAIN
    return ELSEWHERE if verdict.retry == "elsewhere" else code


def exit_code(
    verdict: Verdict,
    ends: Sequence[End],
    *,
    stopped_for: Reason | None,
    signal: int | None,
    several_nodes: bool,
) -> int:
    """0 only for a run that came to its own good end; otherwise the culprit's own code wherever it has one.

    `stopped_for`: why its ranks were stopped, where we stopped them. `signal`: which one cut it short.
    """
    if signal is None and (verdict.outcome == "ok" or (stopped_for is None and all_well(ends))):
        return 0
    guilty = {culprit.rank for culprit in verdict.culprits}
    if stopped_for == "hang" and not (verdict.outcome == "crash" and any(e.failed and e.rank in guilty for e in ends)):
        return HANG  # a culprit that failed while it was looked at has a code of its own
    if stopped_for == "numbers":
        return BAD_NUMBERS
    if signal is not None and verdict.outcome == "interrupted":
        return 128 + signal
    own = _own_code(verdict, ends, guilty)
    if own is not None:
        return own
    if signal is not None:
        return 128 + signal  # it was stuck, and somebody had enough of it
    if several_nodes and ends:
        return 128 + 9 if verdict.cause == "killed" else HANG
    return UNKNOWN


def _own_code(verdict: Verdict, ends: Sequence[End], guilty: set[int | None]) -> int | None:
    """The culprit's, on another node or here, then the first victim's."""
    here = {end.rank for end in ends}
    elsewhere = {rank: code for rank, code in sorted(verdict.exit_codes.items()) if rank not in here}
    failed = sorted((end for end in ends if end.failed), key=lambda end: (end.rank not in guilty, end.at))
    return _first_bad(
        (
            # This node's ranks only failed with a culprit of another node, or were stopped because of it.
            *(code for rank, code in elsewhere.items() if rank in guilty),
            *(end.code for end in failed),
            # Victims on other nodes, where the culprit left with 0 or is lost.
            *elsewhere.values(),
        )
    )


def _first_bad(codes: Iterable[int | None]) -> int | None:
    return next((code if code > 0 else 128 - code for code in codes if code), None)
