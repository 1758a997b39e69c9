"""Whether a job that failed would fail again if it were started again as it is."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.diagnosis.verdict import Verdict

_MISTAKES = frozenset(
    [
        "NameError",
        "UnboundLocalError",
        "AttributeError",
        "TypeError",
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ImportError",
        "ModuleNotFoundError",
        "NotImplementedError",
    ]
)
"""Exceptions that the program itself is the reason of, whatever data and network do."""


def will_fail_again(verdict: Verdict, earlier: Sequence[Verdict] = ()) -> bool:
    """`earlier`: what ended the attempts before, oldest first.

    A cause that stays until somebody changes something, where it is proven. An exception may come of data or of a
    moment: it is one of the program's own mistakes, or it has ended the attempt before in the same way.
    """
    if verdict.certainty != "proven" or verdict.retry != "no":
        return False
    if verdict.cause != "exception":
        return True
    raised = {str(fact.get("type")) for fact in verdict.facts if fact.get("kind") == "raised"}
    return bool(raised & _MISTAKES) or fails_alike(verdict, earlier)


def fails_alike(verdict: Verdict, earlier: Sequence[Verdict]) -> bool:
    """The attempt before ended for the same cause, on the same lines."""
    if not earlier or verdict.cause is None or not _places(verdict):
        return False
    before = earlier[-1]
    return (verdict.outcome, verdict.cause, _places(verdict)) == (before.outcome, before.cause, _places(before))


def _places(verdict: Verdict) -> set[tuple[str, int]]:
    return {(culprit.where.file, culprit.where.line) for culprit in verdict.culprits if culprit.where is not None}
