"""Explains how a rank's process ended where no exception tells it: signals, exit codes, dead loader workers."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.exceptions import where_raised
from rankscope.diagnosis.rules.crashes.known_errors import recognise_lines, remarks
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.views import innermost_user_frame, place, rank_culprit, where
from rankscope.evidence.model import Evidence, Exit, RaisedException, RankEvidence

NATIVE = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP})
_NO_EXCEPTION = "terminate called without an active exception"
_OOM_LINE = re.compile(r"(?i)out of memory|oom-kill|killed process|oom_reaper")
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([A-Z][A-Za-z ]+?)\.")
_WORKER_CODE = re.compile(r"DataLoader worker \(pid (\d+)\) exited unexpectedly with exit code (\d+)")
_WORKERS_GONE = re.compile(r"DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly")
_WORDS = {
    **{signal.strsignal(number): number for number in signal.valid_signals() if signal.strsignal(number)},
    "Bus error": signal.SIGBUS,
}
_SPECIAL_OF_ABORT = frozenset(
    {"out-of-memory-host", "out-of-memory-gpu", "collective-mismatch", "shm-exhausted", "fd-exhausted", "comm-error"}
)
_NATIVE_FIX = (
    "look at the native code called there: bad pointers, wrong shapes or types, a library of another version",
    "run it alone with the same input; PYTHONFAULTHANDLER=1 prints the Python stack, gdb the native one",
)
_LEAVING_FIX = (
    "end the group and drop what uses it before the program ends: dist.destroy_process_group(), then `del` the model",
    "wait for every collective begun with async_op=True, and join threads of native libraries, before the last line",
)
_MEMORY_FIX = (
    "use less memory: load the model on one rank or memory-mapped, smaller batches, fewer loader workers",
    "raise the memory limit of the job or container",
)
_KILLED_FIX = (
    "find who sent the signal: a person, the scheduler (preemption, time limit), a watchdog, a container's end",
    "for SIGKILL look into `dmesg` and the container's memory events for the memory killer",
)


def signal_of(rank: RankEvidence) -> tuple[signal.Signals, bool] | None:
    """The signal that ended a rank, and whether it is certain: a shell around the rank reports 128 + N."""
    if rank.exit is None:
        return None
    code = rank.exit.code
    chosen = rank.progress is not None and bool(rank.progress.exit_site)
    number = -code if code < 0 else code - 128 if code > 128 and not chosen else 0
    try:
        return signal.Signals(number), code < 0
    except ValueError:
        return None


def explain_signal(rank: RankEvidence, number: signal.Signals, certain: bool, evidence: Evidence) -> Finding:
    lines = (*rank.error_tail, *rank.output_tail)
    said = recognise_lines(lines, ("culprit",)) if number in NATIVE else None
    if number == signal.SIGBUS:
        # Torn shared memory is the usual reason, but only its own words prove it.
        said = said if said is not None and said.cause == "shm-exhausted" else None
    elif number != signal.SIGABRT or (said is not None and said.cause not in _SPECIAL_OF_ABORT):
        said = None
    leaving = rank.progress is not None and rank.progress.finalizing
    at = _last_place(rank)
    ended = f"rank {rank.rank} (process {rank.pid}) was ended by {number.name}" + (
        "" if certain else f", by its exit code {rank.exit.code if rank.exit else ''}"
    )
    memory = _memory_killer(rank, rank.pid, evidence) if number == signal.SIGKILL else None
    cause, certainty = "killed", "proven"
    fix: tuple[str, ...] = _KILLED_FIX
    alternatives: tuple[Possibility, ...] = ()
    because = [ended]
    if said is not None and said.cause is not None:
        cause, certainty, fix = said.cause, "likely", said.fix or _NATIVE_FIX
        because.append(f"its last words mean: {said.meaning}")
        alternatives = (Possibility("native-crash", "possible", ended),)
    elif number in NATIVE:
        cause, fix = "native-crash", _NATIVE_FIX
        if leaving:
            fix = (*_LEAVING_FIX, *_NATIVE_FIX)
            because.append("its program had ended, the interpreter was being taken down: no line of it was running")
            if any(_NO_EXCEPTION in line for line in rank.error_tail):
                because.append("a thread of C++ wanted Python when it was gone, and the C++ runtime ended the process")
    elif memory is not None:
        cause, certainty, fix = "out-of-memory-host", "likely", _MEMORY_FIX
        because.append(memory)
        alternatives = (Possibility("killed", "possible", "the signal may have come from elsewhere"),)
    elif number == signal.SIGKILL:
        alternatives = (Possibility("out-of-memory-host", "possible", _no_memory_evidence(rank, evidence)),)
    if not certain and certainty == "proven":
        certainty = "likely"
    doing = f"ended by {number.name}"
    verb = "crashed with" if cause == "native-crash" else "was ended by"
    told = {"out-of-memory-host": ": the host's memory ran out", "shm-exhausted": ": /dev/shm is full"}.get(cause, "")
    return Finding(
        outcome="crash",
        cause=cause,
        certainty=_as_certainty(certainty),
        culprits=(rank_culprit(rank, doing, at),),
        summary=f"rank {rank.rank} {verb} {number.name}"
        + (f" in {place(at)}" if at is not None else " on its way out, after its program had ended" if leaving else "")
        + told,
        because=(*because, *remarks(lines)),
        fix=fix,
        alternatives=alternatives,
        references=(said.reference,) if said is not None and said.reference else (),
    )


def explain_code(rank: RankEvidence, exit_: Exit, evidence: Evidence) -> Finding:
    """The program chose its exit code itself."""
    progress = rank.progress
    at = where(progress.exit_site[0]) if progress is not None and progress.exit_site else None
    note = f" by {progress.exit_note}" if progress is not None and progress.exit_note else ""
    signals = progress.signals if progress is not None else ()
    because = [f"rank {rank.rank} ended with code {exit_.code}{note}, without an uncaught exception"]
    if at is None and (at := _raised_exit(exit_.code, evidence)) is not None:
        because.append(f"the one `raise SystemExit` of the program that gives this code is in {place(at)}")
    if signals:
        because.append(f"its program had handled {', '.join(signals)} before")
    printed = [each for each in rank.exceptions if each.source == "output"]
    alternatives: tuple[Possibility, ...] = ()
    if printed:
        last = printed[-1]
        text = f"its output holds a traceback: {last.type} in {place(where_raised(last.frames))}"
        alternatives = (Possibility("exception", "possible", text),)
    return Finding(
        outcome="crash",
        cause="exit-code",
        certainty="proven",
        culprits=(rank_culprit(rank, f"ended with code {exit_.code}", at),),
        summary=f"rank {rank.rank} ended itself with code {exit_.code}"
        + (f" in {place(at)}" if at is not None else ""),
        because=tuple(because),
        fix=(
            f"see why the program ends at {place(at)}" if at is not None else "see the rank's output for why it ended",
            "let all ranks decide together to end (all_reduce of a flag), so that none is left waiting",
        ),
        alternatives=alternatives,
    )


def _raised_exit(code: int, evidence: Evidence) -> Where | None:
    """`raise SystemExit(n)` leaves no trace, unlike sys.exit(n): the program's text tells, where one place alone can
    have given the code."""
    found = CodeReader(evidence).exits_by_raise()
    exact = [each for each in found if each[3] == code]
    fitting = exact or [each for each in found if each[3] is None]
    if len(fitting) != 1:
        return None
    file, line, function, _ = fitting[0]
    return Where(file=file, line=line, function=function)


def explain_worker_death(rank: RankEvidence, exception: RaisedException | None, evidence: Evidence) -> Finding | None:
    """A data-loading worker that died and took its rank with it; None when the rank's last words are others."""
    words = exception.message if exception is not None else "\n".join(rank.error_tail)
    gone = _WORKERS_GONE.search(words)
    if gone is None and not _WORKER_KILLED.search(words) and not _WORKER_CODE.search(words):
        return None
    lines = "\n".join((*(each.message for each in rank.exceptions), *rank.error_tail, *rank.output_tail))
    killed, coded = _WORKER_KILLED.search(lines), _WORKER_CODE.search(lines)
    pid = int(killed[1]) if killed else int(coded[1]) if coded else int(re.findall(r"\d+", gone[1])[0]) if gone else 0
    number = _WORDS.get(killed[2]) if killed else None
    at = where_raised(exception.frames) if exception is not None else None
    cause, certainty, fix = _worker_cause(lines, number, coded is not None, _memory_killer(rank, pid, evidence))
    how = (
        f"was ended by {signal.Signals(number).name}"
        if number
        else (f"ended with code {coded[2]}" if coded else "ended without a word")
    )
    finding = Finding(
        outcome="crash",
        cause=cause,
        certainty=certainty,
        culprits=(replace(rank_culprit(rank, how, at, "dataloader-worker"), pid=pid),),
        summary=f"a data-loading worker of rank {rank.rank} (process {pid}) {how}"
        + (f", seen in {place(at)}" if at else ""),
        because=(f"data-loading worker {pid} {how}; its rank {rank.rank} ended because of that",),
        fix=fix,
        alternatives=()
        if number
        else (Possibility("out-of-memory-host", "possible", "the memory killer ends workers so"),),
        references=("pytorch/pytorch#5040", "pytorch/pytorch#1355"),
    )
    memory = _memory_killer(rank, pid, evidence) if cause == "out-of-memory-host" else None
    return replace(finding, because=(*finding.because, memory)) if memory else finding


def _worker_cause(
    lines: str, number: int | None, coded: bool, memory: str | None
) -> tuple[str, Certainty, tuple[str, ...]]:
    shm = (
        "raise /dev/shm: `docker run --shm-size=8g` or --ipc=host; in Kubernetes an emptyDir of medium Memory",
        "use fewer loader workers or smaller batches",
    )
    if number == signal.SIGBUS or "out of shared memory" in lines:
        return "shm-exhausted", "likely", shm
    if number in NATIVE:
        return "native-crash", "proven", _NATIVE_FIX
    if (number in {None, signal.SIGKILL}) and not coded and memory is not None:
        return "out-of-memory-host", "likely", _MEMORY_FIX
    if coded and number is None:
        return "exit-code", "proven", ("run with num_workers=0 once: the worker's own error shows then",)
    return "killed", "proven" if number is not None else "possible", _KILLED_FIX


def _last_place(rank: RankEvidence) -> Where | None:
    """Where the rank stood when it died: the dump of the fatal signal, else the call it had not left."""
    if rank.crash_stack:
        return where(innermost_user_frame(rank.crash_stack))
    if rank.progress is not None:
        inside = [call for call in rank.progress.calls if call.left_at is None and call.site]
        if inside:
            return where(inside[0].site[0])
    return None


def _memory_killer(rank: RankEvidence, pid: int, evidence: Evidence) -> str | None:
    """What says that the kernel's memory killer did it; None when nothing does."""
    for host in (each for each in evidence.hosts if each.host == rank.host):
        named = [line for line in host.kernel_log if _OOM_LINE.search(line)]
        exact = next((line for line in named if re.search(rf"\b{pid}\b", line)), None)
        if exact is not None or named:
            return f"the kernel's log says: {exact or named[-1]}"
        if host.oom_kills:
            return f"the memory controller killed {host.oom_kills} process(es) of the job since it began"
    return None


def _no_memory_evidence(rank: RankEvidence, evidence: Evidence) -> str:
    missing = [reason for host in evidence.hosts if host.host == rank.host for reason in host.missing.values()]
    return "the memory killer also sends SIGKILL; nothing shows it" + (f" ({'; '.join(missing)})" if missing else "")


def _as_certainty(word: str) -> Certainty:
    return "proven" if word == "proven" else "likely" if word == "likely" else "possible"
