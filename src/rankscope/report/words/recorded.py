"""Words about dumps of torch's flight recorder, and about stacks alone."""

from __future__ import annotations

from rankscope.diagnosis.facts.recorded import (
    AwaitedUndumped,
    DidNotEnter,
    EitherSide,
    EnteredNotFinished,
    LastRecorded,
    NobodyMoved,
    NoDump,
    OnlyTheyCall,
    ParkedApart,
    ParkedIn,
    RecordedCall,
    TheFewer,
    Unconditional,
    Undecided,
    WaitsForUndumped,
    WaitsInRecorded,
)
from rankscope.diagnosis.verdict import Where
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import place, ranks_text, verb

ADVICE.update(
    {
        "after-last-collective": "look at what that rank does after its last collective: a branch that skips the call, "
        "an exception that is caught, a call that does not return",
        "run-to-see-outside": "run the job with `rankscope run`: it also sees where a rank stands that is in no "
        "collective",
        "dump-its-stack": "see where the rank stands: `py-spy dump --pid PID` on its host, then give the dump to "
        "rankscope diagnose too",
        "give-its-log": "read the end of that rank's log: an exception, a signal, the memory killer; give the log to "
        "rankscope diagnose",
        "dump-again": "take the dump of that rank again later",
        "out-of-the-branch": "move the call out of the branch, or take the branch on all ranks",
        "no-collectives-on-one-rank": "where only one rank should work, keep collectives out of it: model.module, not "
        "the DDP wrapper",
        "others-past-this-line": "see in the other ranks' stacks that they are past this line: `py-spy dump --pid PID`",
        "look-at-rank": "look at rank {ranks}: has its process ended, does its log go on?",
        "let-every-rank-dump": "let every rank write one: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=2000 "
        "in its environment",
        "find-dump-or-log": "find the dump or the log of rank {ranks}, and give it to rankscope diagnose with the "
        "others",
        "run-for-sequence": "start the job with `rankscope run`: the sequence of collectives shows where the ranks "
        "parted",
    }
)


def _site(where: Where | None) -> str:
    return place(where) if where is not None else "a line that the dump does not tell"


def call_text(call: RecordedCall) -> str:
    """`all_reduce 6 of the default group`."""
    group = "the default group" if call.group in ("0", "") else f"group {call.group}"
    return f"{call.op}{f' {call.seq}' if call.seq else ''} of {group}"


def _last(call: RecordedCall | None) -> str:
    if call is None:
        return "its record holds no collective"
    return f"its last recorded call is {call_text(call)} at {_site(call.where)}"


@sentence.register
def _(fact: RecordedCall) -> str:
    return f"{call_text(fact)} at {_site(fact.where)}"


@sentence.register
def _(fact: EnteredNotFinished) -> str:
    return f"{ranks_text(fact.ranks)} entered {sentence(fact.call)} and did not finish it"


@sentence.register
def _(fact: DidNotEnter) -> str:
    return (
        f"{ranks_text(fact.ranks)} did not enter {call_text(fact.call)}, which the others reached at "
        f"{_site(fact.call.where)}; {_last(fact.last)}"
    )


@doing.register
def _(fact: DidNotEnter) -> str:
    return f"has not entered {call_text(fact.call)}; {_last(fact.last)}"


@sentence.register
def _(fact: LastRecorded) -> str:
    return f"rank {fact.rank} did not: {_last(fact.last)}"


@sentence.register
def _(_fact: TheFewer) -> str:
    return "they are the fewer: the others came to the call"


@sentence.register
def _(_fact: Unconditional) -> str:
    return "the call depends on no condition"


@sentence.register
def _(fact: OnlyTheyCall) -> str:
    return f"{ranks_text(fact.ranks)} called {sentence(fact.call)}, which no other rank of the group calls there"


@sentence.register
def _(fact: WaitsInRecorded) -> str:
    return f"waits in {call_text(fact.call)}"


@sentence.register
def _(fact: Undecided) -> str:
    blind = f"; of {ranks_text(fact.unseen)} there is no dump" if fact.unseen else ""
    return (
        f"{ranks_text(fact.waiting)} {verb(fact.waiting, 'wait')} in {sentence(fact.call)}, and "
        f"{ranks_text(fact.absent)} did not enter it{blind}"
    )


@sentence.register
def _(_fact: EitherSide) -> str:
    return "the dumps do not tell whether the call is one too many, or the others do not come to it"


@sentence.register
def _(fact: WaitsForUndumped) -> str:
    absent = ", and nobody else is absent" if fact.only else ", so who is absent cannot be told"
    return (
        f"{ranks_text(fact.waiting)} {verb(fact.waiting, 'wait')} in {sentence(fact.call)}; of "
        f"{ranks_text(fact.undumped)} there is no dump{absent}"
    )


@sentence.register
def _(fact: NoDump) -> str:
    only = ": every other rank of the group has entered the call" if fact.only else ""
    return f"no dump of {ranks_text(fact.ranks)} was given{only}"


@sentence.register
def _(fact: AwaitedUndumped) -> str:
    return f"no dump; {call_text(fact.call)} waits for it"


@sentence.register
def _(fact: ParkedIn) -> str:
    if not fact.ranks:
        return fact.op or "an operation of torch"
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} in {fact.op or 'an operation of torch'} at " + place(
        fact.where
    )


@doing.register
def _(fact: ParkedIn) -> str:
    return f"waits in {fact.op or 'an operation of torch'}"


@headline.register
def _(fact: ParkedApart) -> str:
    return "the ranks wait in different collectives: " + "; ".join(map(sentence, fact.sides))


@sentence.register
def _(fact: ParkedApart) -> str:
    return "; ".join(map(sentence, fact.sides))


@sentence.register
def _(_fact: NobodyMoved) -> str:
    return "none of them moved while it was watched"
