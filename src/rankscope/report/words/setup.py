"""Words about the set-up of a job: ranks that were never started, groups, keys of the store, machines that are gone."""

from __future__ import annotations

from rankscope.diagnosis.facts.setup import (
    Answered,
    AskedForGroup,
    AwaitsKey,
    CutApart,
    DeclaredWorld,
    FailedSetUp,
    GroupsDiffer,
    GroupsTakeAll,
    ImportedTogether,
    KeyUnset,
    LastWord,
    LinkUp,
    LostNode,
    LostState,
    MayBeDown,
    NoAnswerFrom,
    NodeDoes,
    NodesLost,
    OtherVariable,
    RanksNeverStarted,
    SettersWait,
    SetUpVariables,
    WaitInNewGroup,
    WaitInSetUp,
)
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import place, ranks_text, verb

ADVICE.update(
    {
        "same-variables": "give every rank the same {name}: do not set it by hand where a launcher sets it",
        "import-one-at-a-time": "let the ranks import one at a time: --serialize-imports on",
        "world-by-environment": "do not pass world_size and rank by hand: init_process_group() reads WORLD_SIZE and "
        "RANK",
        "launch-declared": "or launch {declared} ranks: --nproc-per-node times --nnodes must be {declared}",
        "new-group-everywhere": "let every rank call new_group for all groups in the same order, and keep those it is "
        "a member of",
        "new-group-local": "or pass use_local_synchronization=True",
        "set-the-key": "find who sets that key, and check that both sides spell it alike; set it before the next "
        "collective",
        "key-timeout": "give the wait a timeout, and say in the error which key is missing",
        "node-gone": "look at that machine: who ended the launcher (scheduler, out of memory, a person), did it "
        "restart?",
        "node-spare": "with --max-restarts and --nnodes MIN:MAX the job goes on without it",
        "node-frozen": "look at that machine: is the job stopped there (kill -CONT), is the machine paused or out of "
        "memory?",
        "node-unreachable": "look at that machine and its network: is it up, does ping reach it, did a firewall or a "
        "switch change?",
        "node-cut-off": "look at the cable, the switch port and the driver of that machine's network interface",
        "nodes-apart": "see what rankscope says on {hosts}; look at the network between them",
    }
)

_LOST: dict[LostState, str] = {
    "gone": "gone: its launcher was killed or its machine restarted",
    "frozen": "frozen: the machine answers, its launcher does not",
    "unreachable": "out of reach: cut off from the network, or down",
    "cut-off": "cut off: its network link is down",
}
_DOES: dict[LostState, str] = {
    "gone": "its launcher has ended without a word",
    "frozen": "its launcher is stopped",
    "unreachable": "its node does not answer",
    "cut-off": "its node has lost its network link",
}


@headline.register
def _(fact: RanksNeverStarted) -> str:
    at = place(fact.where) if fact.where is not None else "init_process_group"
    return (
        f"{ranks_text(fact.ranks)} of the declared world of {fact.declared} was never started: the job has "
        f"{fact.launched} ranks, and all of them wait at {at}"
    )


@sentence.register
def _(fact: RanksNeverStarted) -> str:
    return f"{ranks_text(fact.ranks)} never started"


@sentence.register
def _(fact: DeclaredWorld) -> str:
    return f"init_process_group was told a world of {fact.declared}; {fact.launched} ranks were launched"


@sentence.register
def _(fact: WaitInSetUp) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} in the set-up; nobody else is coming"


@headline.register
def _(fact: OtherVariable) -> str:
    return (
        f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'look')} for the others at {fact.name}={fact.value}; "
        f"all others have {fact.name}={fact.others}"
    )


@sentence.register
def _(fact: OtherVariable) -> str:
    has = "has" if len(fact.ranks) == 1 else "have"
    return f"{ranks_text(fact.ranks)} {has} {fact.name}={fact.value}, the others {fact.name}={fact.others}"


@doing.register
def _(fact: OtherVariable) -> str:
    return f"looks for the others at {fact.name}={fact.value}, they are at {fact.others}"


@sentence.register
def _(fact: FailedSetUp) -> str:
    return f"traceback of rank {fact.rank}: " + " > ".join(map(place, fact.frames))


@sentence.register
def _(fact: SetUpVariables) -> str:
    return f"variables of rank {fact.rank}: " + " ".join(f"{name}={value}" for name, value in fact.variables)


@sentence.register
def _(fact: ImportedTogether) -> str:
    return f"{ranks_text(fact.ranks)} imported their libraries at the same time on one machine"


@sentence.register
def _(fact: AskedForGroup) -> str:
    return f"{ranks_text(fact.ranks)} asked for [{fact.members}]"


@doing.register
def _(fact: AskedForGroup) -> str:
    return f"asked for group [{fact.members}] as its process group number {fact.number}"


@sentence.register
def _(fact: GroupsDiffer) -> str:
    asked = "; ".join(map(sentence, fact.asked))
    return f"the ranks make different process groups: as number {fact.number}, {asked}"


@sentence.register
def _(_fact: GroupsTakeAll) -> str:
    return "every rank must call new_group for every group, in the same order, also for those it is no member of"


@sentence.register
def _(fact: WaitInNewGroup) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} in new_group"


def _key(key: str) -> str:
    return f"the key {key!r}" if key else "a key"


@headline.register
def _(fact: AwaitsKey) -> str:
    return f"rank {fact.rank} waits in {place(fact.where)} for {_key(fact.key)} of the job's store, which nobody sets"


@sentence.register
def _(fact: AwaitsKey) -> str:
    return f"waiting for {_key(fact.key)} of the job's store in {place(fact.where)}"


@sentence.register
def _(fact: KeyUnset) -> str:
    return f"it waits for {_key(fact.key)} of the store, which no rank has set"


@sentence.register
def _(_fact: SettersWait) -> str:
    return "every rank that could set it waits for this one"


@sentence.register
def _(fact: LostNode) -> str:
    if fact.state == "gone":
        launcher = "its launcher" if fact.pid is None else f"its launcher (pid {fact.pid})"
        return f"{fact.host} refuses connections to {launcher}: the process has ended"
    if fact.state == "frozen":
        return f"{fact.host} accepts connections to its launcher (pid {fact.pid}), which never answers them"
    if fact.state == "unreachable":
        return f"connections from {fact.seen_from} to {fact.host} are not answered at all"
    return f"the interface of {fact.host} towards the other nodes has no link"


@sentence.register
def _(fact: NodesLost) -> str:
    names = " and ".join(f"{node.host} ({ranks_text(node.ranks)})" if node.ranks else node.host for node in fact.nodes)
    return f"the node {names} {'is' if len(fact.nodes) == 1 else 'are'} {_LOST[fact.state]}"


@sentence.register
def _(fact: NodeDoes) -> str:
    return _DOES[fact.state]


@sentence.register
def _(fact: LastWord) -> str:
    return f"its last word came {fact.silent_s:.1f} s ago; it had not said goodbye"


@sentence.register
def _(fact: Answered) -> str:
    more = f" and {len(fact.hosts) - 6} more" if len(fact.hosts) > 6 else ""
    return f"{', '.join(fact.hosts[:6])} answered{more}"


@sentence.register
def _(_fact: MayBeDown) -> str:
    return "the machine may be down, which looks the same from here"


@sentence.register
def _(fact: CutApart) -> str:
    hosts = ", ".join(fact.hosts)
    return f"{fact.here} and {hosts} do not reach each other; which of them is cut off cannot be told from {fact.here}"


@sentence.register
def _(fact: NoAnswerFrom) -> str:
    return f"connections from {fact.here} to {', '.join(fact.hosts)} are not answered at all"


@sentence.register
def _(_fact: LinkUp) -> str:
    return "the link of this machine is up"
