"""A rank that waits for a key of the job's store, while every rank that could set it waits for that rank."""

from __future__ import annotations

from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.standing.stand import Stand, finding_of, movement
from rankscope.diagnosis.views import current_where, place
from rankscope.diagnosis.waits import State
from rankscope.evidence.model import Evidence, RankEvidence

_STORE_WAITS = frozenset({"Store.wait", "Store.get"})


def awaited_key(state: State) -> str | None:
    """The key that the rank waits for in the store; None where it does not wait for one."""
    wait = state.wait
    return None if state.kind != "waiting" or wait is None or wait.op not in _STORE_WAITS else wait.note


def explain_key_wait(rank: RankEvidence, key: str, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """Nobody is known who will set it: likely a hang after the threshold, since something outside of the job may."""
    at = current_where(rank)
    named = f"the key {key!r}" if key else "a key"
    stand = Stand(
        cause="blocked-call",
        at=at,
        doing=f"waiting for {named} of the job's store in {place(at)}",
        because=(
            f"it waits for {named} of the store, which no rank has set",
            "every rank that could set it waits for this one",
            *movement(rank),
        ),
        fix=(
            "see who sets that key, and that both sides spell it alike; set it before the next collective",
            "give the wait a timeout, and say in the error which key is missing",
        ),
        summary=f"rank {rank.rank} waits in {place(at)} for {named} of the job's store, which nobody sets",
    )
    return finding_of(stand, rank, evidence, waiters)
