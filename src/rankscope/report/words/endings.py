"""Words for how ranks ended."""

from __future__ import annotations

from rankscope.diagnosis.facts import endings as facts
from rankscope.diagnosis.verdict import Where
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.known_errors import MEANINGS
from rankscope.report.words.phrases import after_steps, place, ranks_text, verb, who

_TOLD_CAUSE = {"out-of-memory-host": ": the host's memory ran out", "shm-exhausted": ": /dev/shm is full"}
_LED = {
    "cause": "was raised from it",
    "context": "was raised while it was being handled",
    "suppressed": "was raised while it was being handled (`from None` hides that)",
    "group": "collects it and others",
    "quoted": "repeats its text",
}


def _in(at: Where | None) -> str:
    return f" in {place(at)}" if at is not None else ""


def _says(text: str) -> str:
    return f": {text}" if text else ""


def _beside(fact: facts.Raised) -> str:
    """In which process or thread of the rank it was raised."""
    if fact.loader_worker is not None:
        return f" (in data-loading worker {fact.loader_worker})"
    if fact.spawned is not None:
        return f" (in spawned process {fact.spawned})"
    return f" (in thread {fact.thread})" if fact.thread else ""


@headline.register
def _(fact: facts.Raised) -> str:
    thread = f" in thread {fact.thread}," if fact.thread else ""
    return f"{who(fact.rank)} raised {fact.type}{thread} in {place(fact.at)}{_says(fact.text)}"


@doing.register
def _(fact: facts.Raised) -> str:
    return f"raised {fact.type}{_says(fact.text)}{_beside(fact)}"


@sentence.register
def _(fact: facts.Raised) -> str:
    rank = "a rank" if fact.rank is None else f"rank {fact.rank}"
    if fact.fate == "pending":
        return f"{fact.type} is being handled on {rank}, raised in {place(fact.at)}"
    if fact.fate == "caught":
        return f"the program of {rank} had caught {fact.type}, raised in {place(fact.at)}{_says(fact.text)}"
    if fact.fate == "thread":
        return f"{fact.type} ended thread {fact.thread} of {rank}, raised in {place(fact.at)}"
    return f"{fact.type} was not caught on {rank}, raised in {place(fact.at)}"


@sentence.register
def _(fact: facts.MadeLater) -> str:
    return f"{fact.path} was made or written {fact.seconds:.1f} s after the error: somebody was still at it"


@sentence.register
def _(fact: facts.YetToMake) -> str:
    return f"rank {fact.rank} is still at {place(fact.where)}, in work that it does alone ahead of that line"


@sentence.register
def _(fact: facts.CameOutAs) -> str:
    return f"it came out as {fact.type}{_says(fact.text)}, which {_LED[fact.led]}{_in(fact.at)}"


@sentence.register
def _(fact: facts.RaisedWhileHandling) -> str:
    return f"the program was handling {fact.handled} of {place(fact.handled_at)}, which it expects"


@sentence.register
def _(fact: facts.RepeatsErrorOf) -> str:
    return f"{ranks_text(fact.ranks)} only {verb(fact.ranks, 'repeat')} the error of rank {fact.of}"


@sentence.register
def _(fact: facts.Means) -> str:
    meaning = MEANINGS[fact.known]
    return f"its last words mean: {meaning}" if fact.last_words else f"the text means: {meaning}"


@sentence.register
def _(fact: facts.Remark) -> str:
    return MEANINGS[fact.known]


@sentence.register
def _(fact: facts.SeenAsException) -> str:
    return f"seen as an exception it is {fact.type} in {place(fact.at)}"


@sentence.register
def _(fact: facts.PrintedTraceback) -> str:
    return f"it had caught {fact.type}, raised in {place(fact.at)}"


@sentence.register
def _(fact: facts.EndedWith) -> str:
    call = f" by {fact.call}" if fact.call else ""
    if not fact.chosen:
        return f"{who(fact.rank)} ended with code {fact.code}{call}"
    return f"{who(fact.rank)} ended with code {fact.code}{call}{_in(fact.at)}, without an uncaught exception"


@headline.register
def _(fact: facts.ChoseCode) -> str:
    if fact.because is None:
        return f"rank {fact.rank} ended itself with code {fact.code}{_in(fact.at)}"
    raised = fact.because
    return (
        f"rank {fact.rank} ended itself with code {fact.code} after {raised.type}{_in(raised.at)}{_says(raised.text)}"
    )


@doing.register
def _(fact: facts.ChoseCode) -> str:
    after = f" after {fact.because.type}{_says(fact.because.text)}" if fact.because is not None else ""
    return f"ended with code {fact.code}{after}"


@sentence.register
def _(fact: facts.ChoseCode) -> str:
    return headline(fact)


@sentence.register
def _(fact: facts.RaisesThatCode) -> str:
    branch = "" if fact.caught is None else f", in `except{' ' * bool(fact.caught)}{fact.caught}`"
    return f"the one `raise SystemExit` of the program that gives this code is in {place(fact.at)}{branch}"


@sentence.register
def _(fact: facts.LogEndsWithTraceback) -> str:
    return f"the log of rank {fact.rank} ends with this traceback"


@sentence.register
def _(fact: facts.HandledSignals) -> str:
    return f"its program had handled {', '.join(fact.signals)} before"


@headline.register
def _(fact: facts.EndedBySignal) -> str:
    verb_ = "crashed with" if fact.cause == "native-crash" else "was ended by"
    leaving = " on its way out, after its program had ended" if fact.leaving and fact.at is None else ""
    return f"rank {fact.rank} {verb_} {fact.signal}{_in(fact.at)}{leaving}{_TOLD_CAUSE.get(fact.cause, '')}"


@doing.register
def _(fact: facts.EndedBySignal) -> str:
    return f"ended by {fact.signal}"


@sentence.register
def _(fact: facts.EndedBySignal) -> str:
    code = "" if fact.code is None else f", by its exit code {fact.code}"
    return f"rank {fact.rank} (process {fact.pid}) was ended by {fact.signal}{code}"


@sentence.register
def _(fact: facts.InterpreterWasLeaving) -> str:
    told = "its program had ended, the interpreter was being taken down: no line of it was running"
    thread = "; a thread of C++ wanted Python when it was gone, and the C++ runtime ended the process"
    return told + (thread if fact.native_thread else "")


@sentence.register
def _(fact: facts.MemoryKiller) -> str:
    if fact.line:
        return f"the kernel's log says: {fact.line}"
    return f"the memory controller killed {fact.kills} process(es) of the job since it began"


@sentence.register
def _(fact: facts.NoMemoryKillerSeen) -> str:
    missing = f" ({'; '.join(fact.missing)})" if fact.missing else ""
    return f"the memory killer also sends SIGKILL; nothing shows it{missing}"


@sentence.register
def _(_: facts.MemoryKillerEndsWorkersSo) -> str:
    return "the memory killer ends workers so"


@sentence.register
def _(_: facts.SignalMayComeFromElsewhere) -> str:
    return "the signal may have come from elsewhere"


@sentence.register
def _(fact: facts.MemoryLimit) -> str:
    return f"each rank was limited to {fact.limit} of address space by --memory-limit"


@headline.register
def _(fact: facts.WorkerDied) -> str:
    at = f", seen in {place(fact.at)}" if fact.at is not None else ""
    return f"a data-loading worker of rank {fact.rank} (process {fact.pid}) {_death(fact)}{at}"


@doing.register
def _(fact: facts.WorkerDied) -> str:
    return _death(fact)


@sentence.register
def _(fact: facts.WorkerDied) -> str:
    return f"data-loading worker {fact.pid} {_death(fact)}; its rank {fact.rank} ended because of that"


def _death(fact: facts.WorkerDied) -> str:
    if fact.signal:
        return f"was ended by {fact.signal}"
    return "ended without a word" if fact.code is None else f"ended with code {fact.code}"


@sentence.register
def _(fact: facts.FailedAlike) -> str:
    return f"{ranks_text(fact.ranks)} failed with {fact.how}{_in(fact.at)}"


@sentence.register
def _(fact: facts.AlsoFailedSo) -> str:
    return f"{ranks_text(fact.ranks)} failed in the same way"


@sentence.register
def _(fact: facts.FailedLater) -> str:
    return f"{ranks_text(fact.ranks)} failed {fact.after_s:.1f} s later or more"


@sentence.register
def _(fact: facts.FailedAsConsequence) -> str:
    return f"{ranks_text(fact.ranks)} failed only as a consequence: a closed connection or a timeout"


@headline.register
def _(fact: facts.Together) -> str:
    return "; ".join(map(headline, fact.failures))


@sentence.register
def _(fact: facts.Together) -> str:
    return f"at the same time, for a reason of their own: {headline(fact)}"


@sentence.register
def _(fact: facts.Besides) -> str:
    return f"{'earlier' if fact.earlier else 'also'}, {headline(fact.failure)}"


@sentence.register
def _(fact: facts.ClocksMayDiffer) -> str:
    return f"which of {', '.join(fact.hosts)} failed first is by their own clocks, which may differ"


@sentence.register
def _(_: facts.StillConnects) -> str:
    return "still tries to connect to the same address"


@headline.register
def _(fact: facts.LeftEarly) -> str:
    last = f", last seen in {place(fact.at)}" if fact.at is not None else ""
    return f"rank {fact.rank} {doing(fact)}{last}" + (
        ": it ran out of data before the others" if fact.out_of_data else ""
    )


@doing.register
def _(fact: facts.LeftEarly) -> str:
    return "exited with code 0" + (f" {after_steps(fact.steps)}" if fact.steps is not None else "")


@sentence.register
def _(fact: facts.LeftEarly) -> str:
    return f"rank {fact.rank} {doing(fact)}; the launcher had not stopped it"


@sentence.register
def _(fact: facts.LeftTogether) -> str:
    return f"{headline(fact.first)}; so did {ranks_text(fact.others)}"


@sentence.register
def _(fact: facts.StillNeededBy) -> str:
    return f"{ranks_text(fact.ranks)} still needed it"


@sentence.register
def _(_: facts.LeftWhileNeeded) -> str:
    return "it ended while others still needed it"


@sentence.register
def _(fact: facts.NeverJoined) -> str:
    return f"it never called init_process_group; {ranks_text(fact.joined)} did"


@sentence.register
def _(fact: facts.LoaderEnded) -> str:
    at_end = " and was not at its end" if fact.other_batches == fact.batches else ""
    return (
        f"its data loader ended after {fact.batches} batches; "
        f"rank {fact.other}'s had given {fact.other_batches}{at_end}"
    )


@sentence.register
def _(fact: facts.GlooEnded) -> str:
    return f"gloo ended {ranks_text(fact.ranks)}, which received a size that it had not asked for"


@doing.register
def _(_: facts.WasAt) -> str:
    return "was in a call of its own"


@sentence.register
def _(fact: facts.WasAt) -> str:
    return f"{ranks_text(fact.ranks)} {'was' if len(fact.ranks) == 1 else 'were'} in {place(fact.where)}"


@sentence.register
def _(fact: facts.MetUnlike) -> str:
    others = "; ".join(map(sentence, fact.others))
    if fact.wrong:
        return f"{'; '.join(map(sentence, fact.wrong))}, while {others}"
    return f"the ranks met in different collectives or sizes: {others or sentence(fact.died)}"


@sentence.register
def _(_: facts.WrongWayUnknown) -> str:
    return "which of them took the wrong way is not known"
