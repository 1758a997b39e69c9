"""A machine of the job that is gone, frozen or cut off: then it is the culprit, by host."""

from __future__ import annotations

import re
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
_MISSED_S = 10.0
"""A job of which nobody gets on for so long after a part of it was gone waits for that part."""
_LISTENS = re.compile(r"tcp (\S+):\d+ listening")


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
    if any(waits_for_lost_machine(rank, evidence) for rank in evidence.ranks) or _missed(lost, evidence):
        return True
    return any(graph.edges.get(rank, frozenset()) & missing or rank in here for rank in graph.waiting())


def _missed(lost: list[NodeEvidence], evidence: Evidence) -> bool:
    """The ranks of a launcher that is gone have ended with it: whatever the others do, the job is not whole any more.
    They are left to it while they get on. Where all have ended well, their launcher waits for those that are gone."""
    silent = [node.silent_for_s or 0.0 for node in lost if node.state == "gone"]
    living = [rank for rank in evidence.ranks if rank.exit is None]
    if not silent or not evidence.ranks:
        return False
    return not living or min(*silent, *(_quiet_s(rank, evidence) for rank in living)) >= _MISSED_S


def _quiet_s(rank: RankEvidence, evidence: Evidence) -> float:
    """Since its page last told of anything; of a rank without one, since its last sign of life."""
    if rank.progress is not None:
        return evidence.collected_at - rank.progress.changed_at
    return rank.still_for_s or 0.0


def waits_for_lost_machine(rank: RankEvidence, evidence: Evidence) -> bool:
    """It stands in a read or write of a connection of its own to a machine of the job that is out of reach, or waits
    for somebody to connect."""
    lost = [node for node in evidence.nodes if node.state in _LOST]
    cut_off = any(node.state == "cut-off" for node in lost)
    others = [node.address for node in (evidence.nodes if cut_off else lost) if node.host != rank.host and node.address]
    if rank.exit is not None or not rank.processes or not others:
        return False
    stands = [sample.syscall.target or "" if sample.syscall is not None else "" for sample in rank.processes]
    if all(map(_open_to_others, stands)):
        return True
    return any(all(f"-> {address}:" in target for target in stands) for address in others)


def _open_to_others(target: str) -> bool:
    """A socket at which another machine may ask for a connection."""
    listens = _LISTENS.fullmatch(target)
    return listens is not None and not listens[1].startswith(("127.", "[::1]"))


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
