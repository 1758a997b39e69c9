"""A rank that waits for a key of the job's store, while every rank that could set it waits for that rank."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.setup import AwaitsKey, KeyUnset, SettersWait
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.standing.stand import Stand, finding_of, movement
from rankscope.diagnosis.views import current_where
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import Evidence, RankEvidence

_STORE_WAITS = frozenset({"Store.wait", "Store.get"})


def awaited_key(state: State) -> str | None:
    """The key that the rank waits for in the store; None where it does not wait for one."""
    wait = state.wait
    return None if state.kind != "waiting" or wait is None or wait.op not in _STORE_WAITS else wait.note


def explain_key_wait(rank: RankEvidence, key: str, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """Nobody is known who will set it: likely a hang after the threshold, since something outside of the job may."""
    at = current_where(rank)
    waits = AwaitsKey(rank.rank, key, at)
    stand = Stand(
        cause="blocked-call",
        at=at,
        doing=waits,
        because=(KeyUnset(key), SettersWait(), *movement(rank)),
        fix=(Advice("set-the-key"), Advice("key-timeout")),
        summary=waits,
    )
    return finding_of(stand, rank, evidence, waiters)
