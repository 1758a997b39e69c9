"""`rankscope attach`: look at a job that hangs now, whoever started it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import NoReturn

from rankscope.diagnosis.attached import as_no_rank, as_watched, no_rank, nobody_found, with_stillness
from rankscope.diagnosis.finding import Ruling
from rankscope.errors import UsageError
from rankscope.evidence import launchers
from rankscope.evidence.attach import take_evidence, uses_distributed
from rankscope.evidence.jobs import FoundJob, NoRanks, SeveralJobs, find_jobs, job_of_pids, with_told_ranks
from rankscope.evidence.stacks import find_py_spy
from rankscope.report.again import exit_code, show
from rankscope.report.conclude import examine, pronounce
from rankscope.report.live import say
from rankscope.report.notices.notifier import Notifier
from rankscope.report.notices.options import add_notify
from rankscope.report.plain_text import plain
from rankscope.report.words.languages import Language, add_lang, chosen_language, language
from rankscope.spelling import mended

_DESCRIPTION = """\
Look at a job that runs on this machine and seems to hang, whoever started it: torchrun, srun, mpirun,
multiprocessing, or rankscope itself. The job needs no preparation; nothing of it is ended or changed.
A rank of an NCCL job that spins on one line is paused for about a second, to read its native frames.
Its ranks are found by themselves. Where several jobs run, say which one with --pid.
"""
_EPILOG = """\
examples:
  rankscope attach
  rankscope attach --pid 4121              any rank of the job, or its launcher
  rankscope attach --pid 4121 --pid 4122   exactly these processes
  rankscope attach --watch 60              longer, to tell slow from stuck

exit code: 0 when every rank was seen to go on, 1 when something is wrong, 3 when what was seen does not tell, 2 for a
mistake in the command, 74 when the output cannot be written
"""
_WATCH_S = 5.0
_GUESSED = "nothing tells the ranks of these processes: they are numbered in the order in which they were started"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope attach --help')")


def attach_command(arguments: list[str]) -> int:
    """The verb: 0 when the job goes on, 1 when something is wrong, 3 when nobody can tell, 2 for a mistake."""
    chosen = _parse(arguments)
    words = language(chosen_language(chosen.lang, os.environ))
    try:
        found = _chosen_job(chosen.pid, words)
        ruling = nobody_found() if found is None else _ruling(with_told_ranks(found), chosen.watch, words)
    except NoRanks as none:
        ruling = no_rank(none.pids, none.command, launcher=none.launcher)
    verdict = pronounce(ruling, words.code)
    notifier = Notifier(chosen.notify, "", os.environ)
    notifier.tell(verdict, "attached")
    show(verdict, as_json=chosen.json, folder="")
    notifier.finish()
    return exit_code(verdict)


def _ruling(job: FoundJob, watch_s: float, words: Language) -> Ruling:
    if find_py_spy() is None:
        say(words.label("py-spy is not installed: without stacks little can be said (pip install py-spy)"))
    say(words.label("{job}; watching for {seconds} s", job=_line(job, words), seconds=f"{watch_s:g}"))
    evidence = take_evidence(job, watch_s)
    if job.guessed_ranks and not uses_distributed(evidence):
        return as_no_rank(examine(evidence), evidence, job.command)
    if job.guessed_ranks:
        say(words.label(_GUESSED))
    evidence = with_stillness(evidence, watch_s)
    return as_watched(examine(evidence), evidence)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="rankscope attach",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pid", type=int, action="append", default=[], help="a rank or the launcher; may be repeated")
    parser.add_argument(
        "--watch",
        type=float,
        default=_WATCH_S,
        metavar="SECONDS",
        help=f"how long to look (default {_WATCH_S:g}): what does not move meanwhile is taken to stand",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output")
    add_notify(parser)
    add_lang(parser)
    chosen = parser.parse_args(arguments)
    if not 1.0 <= chosen.watch <= 3600:
        raise UsageError(f"--watch {chosen.watch:g}: give 1 to 3600 seconds")
    return chosen


def _chosen_job(pids: list[int], words: Language) -> FoundJob | None:
    """None where no job runs here that may be looked into. Raises NoRanks for pids that are none."""
    wrong = next((pid for pid in pids if pid < 1), None)
    if wrong is not None:
        raise UsageError(f"--pid {wrong}: processes have numbers above 0; `pgrep -af python` lists them")
    if 1 in pids and not launchers.may_lead(1):
        raise UsageError(
            "--pid 1 started everything on this machine, so it tells no job: leave --pid out to have the job found, or "
            "give one of its ranks or its launcher"
        )
    if pids:
        try:
            return job_of_pids(pids)
        except SeveralJobs as several:
            raise _which_of(several.jobs, words) from several
        except (ProcessLookupError, OSError) as error:
            raise UsageError(f"--pid: no process of {', '.join(map(str, pids))} can be looked into: {error}") from error
    jobs = find_jobs()
    current = tuple(job for job in jobs if not job.orphaned) or jobs
    if len(current) > 1:
        raise _which_of(jobs, words)
    for job in jobs:
        if job not in current:
            told = "left alone: {job}; `rankscope attach --pid {pid}` looks at it"
            say(words.label(told, job=_line(job, words), pid=job.ranks[0].pid))
    return current[0] if current else None


def _which_of(jobs: tuple[FoundJob, ...], words: Language) -> UsageError:
    """Lists them; the last line says what to do."""
    told = words.label("{count} jobs run on this machine; say which one:", count=len(jobs))
    print(f"rankscope: {told}", file=sys.stderr)
    for job in jobs:
        print(f"  rankscope attach --pid {job.ranks[0].pid}   {_line(job, words)}", file=sys.stderr)
    return UsageError("give one of them with --pid")


def _line(job: FoundJob, words: Language) -> str:
    count = len(job.ranks)
    ranks = words.counted(count, "{count} rank", "{count} ranks")
    if job.world_size > count:
        ranks = words.label("{ranks} of {world}", ranks=ranks, world=job.world_size)
    age = words.span(max(0.0, time.time() - min(rank.started_at for rank in job.ranks)))
    port = job.ranks[0].environment.get("MASTER_PORT", "")
    about = [
        words.label("started {time} ago", time=age),
        *([words.label("port {port}", port=port)] if port else []),
        *([words.label("left behind by an earlier job, its launcher is gone")] if job.orphaned else []),
    ]
    whole = words.label("{ranks} of {launcher}", ranks=ranks, launcher=job.launcher)
    return plain(f"{whole} ({', '.join(about)}): {job.command[:80]}")
