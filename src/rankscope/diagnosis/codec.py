"""The verdict as JSON, in the contract's order of fields, and back."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.encode import to_json

READABLE = (1, 2)
"""Schemas that can be read: 2 only added fields and words to 1."""


def verdict_to_json(verdict: Verdict) -> bytes:
    """Indented UTF-8 with a newline at the end; seconds have three digits."""
    rounded = replace(
        verdict,
        detected_after_s=_round(verdict.detected_after_s),
        started_at=_round(verdict.started_at),
        ended_at=_round(verdict.ended_at),
        exit_codes=dict(sorted(verdict.exit_codes.items())),
    )
    return msgspec.json.format(to_json(rounded), indent=2) + b"\n"


def verdict_from_json(data: bytes) -> Verdict:
    """Fields that a later version added are left out; anything else unexpected is an EvidenceError."""
    try:
        verdict = msgspec.json.decode(data, type=Verdict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"not a verdict: {error}") from error
    if verdict.schema not in READABLE:
        raise EvidenceError(f"a verdict of schema {verdict.schema}; this version of rankscope reads schemas 1 and 2")
    return verdict


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
