"""A data-loading worker that died and took its rank with it."""

from __future__ import annotations

import re
import signal

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.endings import MemoryKillerEndsWorkersSo, WorkerDied
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.chains import Account
from rankscope.diagnosis.rules.crashes.deaths import KILLED_FIX, MEMORY_FIX, NATIVE, NATIVE_FIX, memory_killer
from rankscope.diagnosis.rules.crashes.exceptions import place_of
from rankscope.diagnosis.verdict import Certainty
from rankscope.diagnosis.views import rank_culprit
from rankscope.evidence.model import Evidence, RankEvidence

_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([A-Z][A-Za-z ]+?)\.")
_CODE = re.compile(r"DataLoader worker \(pid (\d+)\) exited unexpectedly with exit code (\d+)")
_GONE = re.compile(r"DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly")
_SIGNALS = {
    **{signal.strsignal(number): number for number in signal.valid_signals() if signal.strsignal(number)},
    "Bus error": signal.SIGBUS,
}


def explain_worker_death(rank: RankEvidence, account: Account, evidence: Evidence) -> Finding | None:
    """None when the rank's exception tells of something else."""
    words = "\n".join(link.error.message for link in account.links)
    gone = _GONE.search(words)
    if gone is None and not _KILLED.search(words) and not _CODE.search(words):
        return None
    lines = "\n".join((words, *(each.message for each in rank.exceptions), *rank.error_tail, *rank.output_tail))
    killed, coded = _KILLED.search(lines), _CODE.search(lines)
    pid = int(killed[1]) if killed else int(coded[1]) if coded else int(re.findall(r"\d+", gone[1])[0]) if gone else 0
    number = _SIGNALS.get(killed[2]) if killed else None
    killer = memory_killer(rank, pid, evidence)
    cause, certainty, fix = _cause(lines, number, coded is not None, killer is not None)
    died = WorkerDied(
        rank=rank.rank,
        pid=pid,
        signal=signal.Signals(number).name if number else "",
        code=int(coded[2]) if coded and not number else None,
        at=place_of(account),
    )
    because: tuple[Fact, ...] = (died,)
    if killer is not None and cause == "out-of-memory-host":
        because = (died, killer)
    return Finding(
        outcome="crash",
        cause=cause,
        certainty=certainty,
        culprits=(replace(rank_culprit(rank, died, died.at, "dataloader-worker"), pid=pid),),
        summary=died,
        because=because,
        fix=fix,
        alternatives=() if number else (Possibility("out-of-memory-host", "possible", MemoryKillerEndsWorkersSo()),),
        references=("pytorch/pytorch#5040", "pytorch/pytorch#1355"),
    )


def _cause(lines: str, number: int | None, coded: bool, killer: bool) -> tuple[str, Certainty, tuple[Advice, ...]]:
    if number == signal.SIGBUS or "out of shared memory" in lines:
        return "shm-exhausted", "likely", (Advice("raise-shm"), Advice("fewer-loader-workers"))
    if number in NATIVE:
        return "native-crash", "proven", NATIVE_FIX
    if number in {None, signal.SIGKILL} and not coded and killer:
        return "out-of-memory-host", "likely", MEMORY_FIX
    if coded and number is None:
        return "exit-code", "proven", (Advice("no-workers-once"),)
    return "killed", "proven" if number is not None else "possible", KILLED_FIX
