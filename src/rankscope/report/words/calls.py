"""Words for facts about calls."""

from __future__ import annotations

import os

from rankscope.diagnosis.facts.calls import (
    Alone,
    Batches,
    Called,
    Circle,
    Condition,
    EndedAfter,
    ExpectsMore,
    Extra,
    FewerMessages,
    FirstDifference,
    GroupOrder,
    LeftLoop,
    MessageMissing,
    Mismatch,
    NewWay,
    NobodyMakes,
    NobodyStandsOut,
    NoDifferenceSeen,
    NoMeeting,
    NotCome,
    Now,
    OtherPeers,
    OtherShares,
    OutOfData,
    PairedAnyway,
    Passes,
    Perhaps,
    Shares,
    Sides,
    Skipped,
    UnevenPasses,
    WaitsIn,
    WentOn,
    WrongPair,
    WrongPeer,
)
from rankscope.diagnosis.verdict import Where
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import NO_LINE, after_steps, place, ranks_text, verb

ADVICE.update(
    {
        "same-collectives": "make every rank reach the same collectives in the same order: move the call out of the "
        "branch, or take the branch on all ranks",
        "one-rank-works": "where only one rank should work (evaluation, saving), keep collectives out of it: use "
        "model.module, not the DDP wrapper, and put the barrier after the branch",
        "decide-together": "decide from what all ranks share: all_reduce the flag before the branch",
        "checkpoint-before": "go back to a checkpoint from before this place: what was computed since is wrong",
        "same-call": "make all ranks call the same operation with the same size, dtype and root at this place",
        "same-shares": "make the shares from one plan that all ranks have: exchange the counts first "
        "(all_to_all_single of the input splits gives the output splits)",
        "pad-first": "pad or gather sizes first where the data differs from rank to rank",
        "one-group-order": "use the process groups in one fixed order on every rank (sort by group, not by rank, dict "
        "or arrival)",
        "first-group-first": "or wait for the first collective before entering one of another group",
        "same-batches": "give every rank the same number of batches: drop_last=True, a DistributedSampler, or a fixed "
        "number of steps",
        "join": "or wrap the loop in torch.distributed.algorithms.join.Join",
        "same-rounds": "let every rank communicate in the same rounds: the same number of accumulation steps, the same "
        "`no_sync()`",
        "shared-decision": "decide from what all ranks share (the step, an all_reduce of the flag), not from what one "
        "rank has seen",
        "same-messages": "make both sides agree on the number of messages: send it first, or pad the last batch",
        "pair-messages": "make both sides agree on the number of messages: each isend needs its irecv, on every rank",
        "one-sends": "let one side of each pair send while the other receives, or use batch_isend_irecv",
        "check-peers": "let every send name the rank that receives it, and every recv the rank that sends: check src "
        "and dst",
        "same-tag": "give both calls the same tag and the same group",
        "shared-tag": "derive the tag from what both sides know, as the step or the number of the micro-batch",
        "compare-stacks": "compare the stacks of the ranks in the evidence",
    }
)

_PERHAPS = {
    "calls-differ": "the calls at this place differ",
    "skipped-before": "one side may have skipped a call before",
    "one-call-missing": "one of the calls may be missing on the other side",
    "left-loop-otherwise": "the loop may have been left for another reason",
    "loop-left-early": "a loop may have been left before its end",
    "other-side-expects-more": "the other side may expect too many",
    "fewer-batches": "one side may have had fewer batches to send",
    "peer-left-out-message": "the peer that it names may have left out its message",
    "message-behind": "one side may be a message behind the other",
    "large-message": "a large message may still be under way",
    "wrong-peer-or-tag": "a message may name the wrong peer or tag",
    "left-too-early": "it ended while others still needed it",
    "passed-once": "the condition may have skipped the call once",
}


def _at(where: Where | None) -> str:
    return place(where) if where is not None else NO_LINE


def _group(group: str) -> str:
    return "the default group" if group in ("0", "") else f"group {group}"


def _collective(fact: WaitsIn) -> str:
    if fact.several:
        return "a wait for one of several messages"
    if fact.peer >= 0:
        return f"{fact.op} with rank {fact.peer}"
    number = f" {fact.number}" if fact.number else ""
    group = f" of {_group(fact.group)}" if fact.group else ""
    return f"{fact.op}{number}{group}"


def _call(fact: Called) -> str:
    """`broadcast of 5 elements at share (train.py:9), after 3 steps`."""
    size = f" of {fact.numel} element{'s' if fact.numel > 1 else ''}" if fact.numel > 0 else ""
    kind = f" of {fact.dtype}" if fact.dtype else ""
    if fact.shape:
        size += f" ({' x '.join(map(str, fact.shape))})"
    root = f" with root {fact.root}" if fact.root >= 0 else ""
    through = f" through {fact.through}" if fact.through else ""
    caller = f", called from {place(fact.caller)}" if fact.caller is not None else ""
    step = f", {after_steps(fact.step)}" if fact.step > 0 else ""
    reduces = f" ({fact.reduces})" if fact.reduces else ""
    return f"{fact.op}{reduces}{size}{kind}{root}{through} at {_at(fact.where)}{caller}{step}"


@sentence.register
def _(fact: Called) -> str:
    return f"{ranks_text(fact.ranks)} called {_call(fact)}"


@doing.register
def _(fact: Called) -> str:
    return f"called {_call(fact)}"


@sentence.register
def _(fact: NotCome) -> str:
    return f"{ranks_text(fact.ranks)} did not make this call"


@sentence.register
def _(fact: FirstDifference) -> str:
    text = f"collective {fact.place} of {_group(fact.group)} is the first on which the ranks differ"
    return f"{text}, in iteration {fact.round} of {fact.op} at {_at(fact.where)}" if fact.round else text


@sentence.register
def _(fact: Extra) -> str:
    return f"{sentence(fact.call)}; no other rank of the group makes this call there"


@headline.register
def _(fact: Extra) -> str:
    return f"{sentence(fact.call)}, a call that no other rank of the group makes there"


@sentence.register
def _(fact: Skipped) -> str:
    more = f" and {fact.count - 1} more calls" if fact.count > 1 else ""
    times = f" in iteration {fact.round}" if fact.round else ""
    return f"{ranks_text(fact.ranks)} skipped the {fact.op} at {_at(fact.where)}{more}{times} and went on"


@doing.register
def _(fact: Skipped) -> str:
    return f"skipped the {fact.op} at {_at(fact.where)}"


@sentence.register
def _(fact: Sides) -> str:
    return "; ".join(map(sentence, fact.calls))


@headline.register
def _(fact: Sides) -> str:
    ways = {2: "two", 3: "three"}.get(len(fact.calls), str(len(fact.calls)))
    return f"the ranks went {ways} ways, and nothing shows which is wrong: {sentence(fact)}"


@sentence.register
def _(fact: NobodyStandsOut) -> str:
    return f"{ranks_text(fact.ranks)} did not do the same, and nothing shows which of them is wrong"


@sentence.register
def _(fact: Mismatch) -> str:
    return f"{'; '.join(map(sentence, fact.calls))}: these never match"


@sentence.register
def _(fact: WrongPair) -> str:
    return f"{'; '.join(map(sentence, fact.calls))}: these were paired, and do not belong together"


@sentence.register
def _(fact: PairedAnyway) -> str:
    more = f", {fact.since} collectives ago" if fact.since else ""
    later = f"; later it paired these: {'; '.join(map(sentence, fact.later))}" if fact.later else ""
    return f"they were paired all the same and the job went on{more}: its numbers are wrong since then{later}"


@sentence.register
def _(fact: Shares) -> str:
    more = f"; {fact.more} other share{'s' if fact.more > 1 else ''} of the call misfit too" if fact.more else ""
    return f"{_share(fact)}: rank {fact.receiver} expects {fact.expected} from it{more}"


@doing.register
def _(fact: Shares) -> str:
    return _share(fact)


def _share(fact: Shares) -> str:
    elements = "element" if fact.sent == 1 else "elements"
    return f"rank {fact.sender} sends {fact.sent} {elements} to rank {fact.receiver} in {fact.op} at {_at(fact.where)}"


@sentence.register
def _(fact: OtherShares) -> str:
    return (
        f"rank {fact.rank} exchanged another share with rank {fact.partner} in all {fact.times} calls before; "
        f"rank {fact.partner} does as ever"
    )


@sentence.register
def _(fact: Condition) -> str:
    file = os.path.basename(fact.where.file)
    here = f"`{_condition(fact)}` ({file}:{fact.where.line})"
    who = ranks_text(fact.ranks)
    target = f" {_at(fact.target)}" if fact.target is not None else " the call"
    if fact.effect == "leads-to":
        return f"only {who} took this branch: {here}"
    if fact.effect == "keeps-from":
        return f"{here} keeps {who} from{target}"
    return f"{here} skips{target}"


def _condition(fact: Condition) -> str:
    return f"else of {fact.code}" if fact.form == "else" else fact.code


@sentence.register
def _(fact: Alone) -> str:
    return f"the other {fact.others} ranks of the group went the other way"


@sentence.register
def _(fact: NewWay) -> str:
    return f"{ranks_text(fact.ranks)} had never gone this way before; the other had been taken {fact.times} times"


@sentence.register
def _(fact: WentOn) -> str:
    calls = "call" if fact.count == 1 else "calls"
    if fact.what == "changed":
        return "after it the sequences agree again: this one call differs"
    more = "more" if fact.what == "extra" else "fewer"
    return f"after it the sequences agree again, with {fact.count} {calls} {more} on {ranks_text(fact.ranks)}"


@sentence.register
def _(fact: WaitsIn) -> str:
    at = f" at {place(fact.where)}" if fact.where is not None else ""
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} in {_collective(fact)}{at}"


@doing.register
def _(fact: WaitsIn) -> str:
    return f"waits in {_collective(fact)}"


@sentence.register
def _(fact: Now) -> str:
    return "now " + "; ".join(f"{ranks_text(wait.ranks)} in {_collective(wait)}" for wait in fact.waits)


@sentence.register
def _(_fact: GroupOrder) -> str:
    return "each waits for a rank that waits for it in another group: none can go on"


@headline.register
def _(fact: GroupOrder) -> str:
    parts = "; ".join(map(sentence, fact.waits))
    if not fact.told_apart:
        return f"{ranks_text(fact.ranks)} wait for each other in {fact.groups} process groups: {parts}"
    return (
        f"{ranks_text(fact.ranks)} entered the collectives of {fact.groups} process groups in another order than the "
        f"ranks they wait for: {parts}"
    )


@sentence.register
def _(_fact: Circle) -> str:
    return "no rank of the circle can go on before another does"


@headline.register
def _(fact: Circle) -> str:
    return f"{ranks_text(fact.ranks)} send and receive in an order in which each waits for the next"


@sentence.register
def _(fact: Batches) -> str:
    end = ", then its loader was at its end" if fact.exhausted else ""
    return f"rank {fact.rank} took {fact.taken} batch{'' if fact.taken == 1 else 'es'} from its loader{end}"


@sentence.register
def _(fact: LeftLoop) -> str:
    loop = f"{os.path.basename(fact.loop.file)}:{fact.loop.line}"
    return f"{ranks_text(fact.ranks)} left the loop at {loop}, in which the others still are"


@sentence.register
def _(fact: OutOfData) -> str:
    return f"{ranks_text(fact.ranks)} ran out of data before {ranks_text(fact.others)} and went on to {_at(fact.where)}"


@doing.register
def _(fact: OutOfData) -> str:
    return f"out of data before {ranks_text(fact.others)}"


@sentence.register
def _(fact: Passes) -> str:
    return f"rank {fact.rank} made {fact.made} passes there, {fact.communicating} of them with a collective"


@sentence.register
def _(fact: UnevenPasses) -> str:
    text = f"{ranks_text(fact.ranks)} do not communicate in the same passes through {_at(fact.where)}"
    if not fact.number:
        return text
    reduce = f"{ranks_text(fact.reducing)} {verb(fact.reducing, 'reduce')}"
    return f"{text}: in pass {fact.number} {reduce}, {ranks_text(fact.silent)} not"


@sentence.register
def _(fact: FewerMessages) -> str:
    if fact.peer < 0 and fact.made > fact.usual:
        return (
            f"rank {fact.rank} began {fact.made} messages at {_at(fact.where)}, where it had begun {fact.usual} every "
            "time before"
        )
    if fact.peer < 0:
        return f"rank {fact.rank} began {fact.made} of its usual {fact.usual} messages at {_at(fact.where)}"
    return (
        f"rank {fact.rank} made {fact.made} {fact.op} with rank {fact.peer}, where it had made {fact.usual} in every "
        "round before"
    )


@headline.register
def _(fact: FewerMessages) -> str:
    text = sentence(fact)
    return text if fact.peer < 0 or fact.where is None else f"{text}, and went on to {place(fact.where)}"


@doing.register
def _(fact: FewerMessages) -> str:
    if fact.made > fact.usual:
        return f"made {fact.made} messages instead of {fact.usual}"
    return f"made {fact.made} of {fact.usual} messages and went on"


@sentence.register
def _(fact: OtherPeers) -> str:
    return f"all {fact.times} times before, rank {fact.rank} had exchanged these messages {_partners(fact.gone)}"


@headline.register
def _(fact: OtherPeers) -> str:
    return (
        f"rank {fact.rank} exchanges messages {_partners(fact.new)} instead of {_partners(fact.gone)} at "
        f"{_at(fact.where)}: all {fact.times} times before it was the latter"
    )


@doing.register
def _(fact: OtherPeers) -> str:
    return f"exchanges messages {_partners(fact.new)} instead of {_partners(fact.gone)}"


def _partners(ranks: tuple[int, ...]) -> str:
    return f"with {ranks_text(ranks)}" if ranks else "as often as ever"


@sentence.register
def _(fact: MessageMissing) -> str:
    return f"{ranks_text(fact.gone.ranks)} has gone on to the {fact.gone.op} at {_at(fact.gone.where)}"


@headline.register
def _(fact: MessageMissing) -> str:
    return f"{sentence(fact.wait)}, and {sentence(fact)}: the number of messages between them does not match"


@sentence.register
def _(fact: ExpectsMore) -> str:
    return (
        f"{ranks_text(fact.agree)} exchanged {fact.messages} messages in this step and went on; in every step before, "
        f"rank {fact.rank} had exchanged as many as they, and now it alone waits for one more"
    )


@sentence.register
def _(fact: WrongPeer) -> str:
    return f"all {fact.times} times before, {ranks_text(fact.wait.ranks)} had made it with rank {fact.usual}"


@headline.register
def _(fact: WrongPeer) -> str:
    return (
        f"{ranks_text(fact.wait.ranks)} is in {_collective(fact.wait)}, while rank {fact.usual} waits for it: "
        f"the {fact.wait.op} at {_at(fact.wait.where)} names the wrong peer"
    )


@sentence.register
def _(fact: NoMeeting) -> str:
    return f"a send that finds its recv returns once the message is there: {_apart(fact)}"


@headline.register
def _(fact: NoMeeting) -> str:
    return f"{sentence(fact.send)}, and {sentence(fact.receive)}: these do not meet, {_apart(fact)}"


def _apart(fact: NoMeeting) -> str:
    return "their process groups differ" if fact.groups_differ else "their tags may differ"


@sentence.register
def _(_fact: NobodyMakes) -> str:
    return "every rank that the message could come from waits itself"


@headline.register
def _(fact: NobodyMakes) -> str:
    return f"{sentence(fact.wait)}, and no rank makes the other half of it"


@sentence.register
def _(fact: NoDifferenceSeen) -> str:
    return f"{ranks_text(fact.ranks)} wait for each other and cannot go on; where they parted was not recorded"


@sentence.register
def _(fact: EndedAfter) -> str:
    return f"rank {fact.rank} then ended with code {fact.code}; the launcher had not stopped it"


@sentence.register
def _(fact: Perhaps) -> str:
    return sentence(fact.condition) if fact.condition is not None else _PERHAPS[fact.reason]
