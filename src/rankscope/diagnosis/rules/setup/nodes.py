"""A machine of the job that is gone, frozen or cut off: then it is the culprit, by host."""

from __future__ import annotations

from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.verdict import Certainty, Outcome
from rankscope.diagnosis.views import ranks_text
from rankscope.diagnosis.waits import WaitGraph
from rankscope.evidence.model import Evidence, NodeEvidence

_LOST = frozenset({"gone", "frozen", "unreachable", "cut-off"})
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
    state = min((node.state for node in lost), key=("cut-off", "gone", "frozen", "unreachable").index)
    lost = [node for node in lost if node.state == state]
    outcome, cause, certainty, doing = _CASES[state]
    if outcome == "hang" and any(rank.exit is not None and rank.exit.code != 0 for rank in evidence.ranks):
        outcome = "crash"
    names = " and ".join(f"{node.host} ({ranks_text(node.ranks)})" for node in lost)
    silent = max((node.silent_for_s or 0.0 for node in lost), default=0.0)
    verb = "is" if len(lost) == 1 else "are"
    return Finding(
        outcome=outcome,
        cause=cause,
        certainty=certainty,
        culprits=tuple(
            Suspect(rank=rank, host=node.host, pid=None, process="rank", where=None, doing=doing)
            for node in lost
            for rank in node.ranks
        ),
        summary=f"the node {names} {verb} {_WORDS[state]}",
        because=(*_facts(lost, silent), *(_answering(evidence))),
        fix=_FIXES[state],
        alternatives=_ALTERNATIVES.get(state, ()),
    )


_CASES: dict[str, tuple[Outcome, str, Certainty, str]] = {
    "gone": ("crash", "killed", "proven", "its launcher has ended without a word"),
    "frozen": ("hang", "frozen-process", "likely", "its launcher is stopped"),
    "unreachable": ("hang", "address-unreachable", "likely", "its node does not answer"),
    "cut-off": ("hang", "address-unreachable", "likely", "its node has lost its network link"),
}
_WORDS = {
    "gone": "gone: its launcher was killed or its machine restarted",
    "frozen": "frozen: the machine answers, its launcher does not",
    "unreachable": "out of reach: cut off from the network, or down",
    "cut-off": "cut off: its network link is down",
}
_FIXES: dict[str, tuple[str, ...]] = {
    "gone": (
        "look at that machine: who ended the launcher (scheduler, out of memory, a person), did it restart?",
        "with --max-restarts and --nnodes MIN:MAX the job goes on without it",
    ),
    "frozen": ("look at that machine: is the job stopped there (kill -CONT), is the machine paused or out of memory?",),
    "unreachable": (
        "look at that machine and its network: is it up, does ping reach it, did a firewall or a switch change?",
    ),
    "cut-off": ("look at the cable, the switch port and the driver of that machine's network interface",),
}
_ALTERNATIVES: dict[str, tuple[Possibility, ...]] = {
    "unreachable": (Possibility("killed", "possible", "the machine may be down, which looks the same from here"),),
}


def _facts(lost: list[NodeEvidence], silent: float) -> tuple[str, ...]:
    facts = []
    for node in lost:
        if node.state == "gone":
            facts.append(f"{node.host} refuses connections to its launcher (pid {node.pid}): the process has ended")
        elif node.state == "frozen":
            facts.append(f"{node.host} accepts connections to its launcher (pid {node.pid}), which never answers them")
        elif node.state == "unreachable":
            facts.append(f"connections from {node.seen_from} to {node.host} are not answered at all")
        else:
            facts.append(f"the interface of {node.host} towards the other nodes has no link")
    if silent > 0:
        facts.append(f"its last word came {silent:.1f} s ago; it had not said goodbye")
    return tuple(facts)


def _answering(evidence: Evidence) -> tuple[str, ...]:
    fine = [node.host for node in evidence.nodes if node.state == "answered"]
    return (f"{', '.join(fine[:6])} answered{f' and {len(fine) - 6} more' if len(fine) > 6 else ''}",) if fine else ()


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
    return any(graph.edges.get(rank, frozenset()) & missing or rank in here for rank in graph.waiting())


def _nobody_answers(evidence: Evidence) -> bool:
    """Two machines that do not reach each other: seen from the one without the store, either may be cut off."""
    others = [node for node in evidence.nodes if node.host != node.seen_from]
    return bool(others) and not evidence.speaker and all(node.state == "unreachable" for node in others)


def _apart(lost: list[NodeEvidence]) -> Finding:
    here = lost[0].seen_from
    names = ", ".join(node.host for node in lost[:6])
    return Finding(
        outcome="hang",
        cause="address-unreachable",
        certainty="likely",
        culprits=(),
        summary=f"{here} and {names} do not reach each other; which of them is cut off cannot be told from {here}",
        because=(f"connections from {here} to {names} are not answered at all", "the link of this machine is up"),
        fix=(f"see what rankscope says on {names}; look at the network between them",),
    )
