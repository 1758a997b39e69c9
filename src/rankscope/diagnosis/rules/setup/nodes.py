"""A machine of the job that is gone, frozen or cut off: then it is the culprit, by host."""

from __future__ import annotations

from typing import cast

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.setup import (
    Answered,
    CutApart,
    LastWord,
    LinkUp,
    LostNode,
    LostState,
    MayBeDown,
    NoAnswerFrom,
    NodeDoes,
    NodesLost,
)
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.verdict import Certainty, Outcome
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence, NodeEvidence, RankEvidence

_LOST: tuple[LostState, ...] = ("cut-off", "gone", "frozen", "unreachable")
"""The state that says most first."""
_BEAT_S = 3.0
"""A node's last word may be so much older than the moment it was lost."""


def explain_lost_node(evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """None while every node answers or nobody needs the one that does not, and where ranks had failed before."""
    lost = [node for node in evidence.nodes if node.state in _LOST]
    if not lost or _failed_before(lost, evidence) or not _needed(lost, evidence, graph):
        return None
    own = [node for node in lost if node.state == "cut-off"]
    if own:
        # A machine without a link of its own finds everybody else unreachable.
        lost = own
    elif _nobody_answers(evidence):
        return _apart(lost)
    state = min((cast(LostState, node.state) for node in lost), key=_LOST.index)
    lost = [node for node in lost if node.state == state]
    outcome, cause, certainty = _CASES[state]
    if outcome == "hang" and any(rank.exit is not None and rank.exit.code != 0 for rank in evidence.ranks):
        outcome = "crash"
    nodes = tuple(LostNode(node.host, node.ranks, state, node.pid, node.seen_from) for node in lost)
    return Finding(
        outcome=outcome,
        cause=cause,
        certainty=certainty,
        culprits=tuple(
            Suspect(rank=rank, host=node.host, pid=None, process="rank", where=None, doing=NodeDoes(state))
            for node in lost
            for rank in node.ranks
        ),
        summary=NodesLost(nodes, state),
        because=(*nodes, *_last_word(lost), *_answering(evidence)),
        fix=_FIXES[state],
        alternatives=(Possibility("killed", "possible", MayBeDown()),) if state == "unreachable" else (),
    )


_CASES: dict[LostState, tuple[Outcome, str, Certainty]] = {
    "gone": ("crash", "killed", "proven"),
    "frozen": ("hang", "frozen-process", "likely"),
    "unreachable": ("hang", "address-unreachable", "likely"),
    "cut-off": ("hang", "address-unreachable", "likely"),
}
_FIXES: dict[LostState, tuple[Advice, ...]] = {
    "gone": (Advice("node-gone"), Advice("node-spare")),
    "frozen": (Advice("node-frozen"),),
    "unreachable": (Advice("node-unreachable"),),
    "cut-off": (Advice("node-cut-off"),),
}


def _last_word(lost: list[NodeEvidence]) -> tuple[Fact, ...]:
    silent = max((node.silent_for_s or 0.0 for node in lost), default=0.0)
    return (LastWord(silent),) if silent > 0 else ()


def _answering(evidence: Evidence) -> tuple[Fact, ...]:
    fine = tuple(node.host for node in evidence.nodes if node.state == "answered")
    return (Answered(fine),) if fine else ()


def _failed_before(lost: list[NodeEvidence], evidence: Evidence) -> bool:
    """A rank elsewhere failed while the lost node still spoke: the node went down with the job, not before it."""
    last_word = evidence.collected_at - max((node.silent_for_s or 0.0) for node in lost)
    failures = [
        rank.exit.at
        for rank in evidence.ranks
        if rank.exit is not None and rank.exit.code != 0 and not rank.exit.by_launcher
    ]
    return any(at < last_word - _BEAT_S for at in failures)


def _needed(lost: list[NodeEvidence], evidence: Evidence, graph: WaitGraph) -> bool:
    """A launcher that is slow to answer harms nobody while the ranks go on."""
    if any(rank.exit is not None and rank.exit.code != 0 for rank in evidence.ranks):
        return True
    missing = {rank for node in lost for rank in node.ranks}
    here = {rank for node in lost if node.state == "cut-off" for rank in node.ranks}
    if any(waits_for_lost_machine(rank, evidence) for rank in evidence.ranks):
        return True
    return any(graph.edges.get(rank, frozenset()) & missing or rank in here for rank in graph.waiting())


def waits_for_lost_machine(rank: RankEvidence, evidence: Evidence) -> bool:
    """It stands in a read or write of a connection of its own to a machine of the job that is out of reach."""
    lost = [node for node in evidence.nodes if node.state in _LOST]
    cut_off = any(node.state == "cut-off" for node in lost)
    others = [node.address for node in (evidence.nodes if cut_off else lost) if node.host != rank.host and node.address]
    if rank.exit is not None or not rank.processes or not others:
        return False
    stands = [sample.syscall.target or "" if sample.syscall is not None else "" for sample in rank.processes]
    return any(all(f"-> {address}:" in target for target in stands) for address in others)


def _nobody_answers(evidence: Evidence) -> bool:
    """Two machines that do not reach each other: seen from the one without the store, either may be cut off."""
    others = [node for node in evidence.nodes if node.host != node.seen_from]
    return bool(others) and not evidence.speaker and all(node.state == "unreachable" for node in others)


def _apart(lost: list[NodeEvidence]) -> Finding:
    here = lost[0].seen_from
    hosts = tuple(node.host for node in lost[:6])
    return Finding(
        outcome="hang",
        cause="address-unreachable",
        certainty="likely",
        culprits=(),
        summary=CutApart(here, hosts),
        because=(NoAnswerFrom(here, hosts), LinkUp()),
        fix=(Advice("nodes-apart", hosts=", ".join(hosts)),),
    )
