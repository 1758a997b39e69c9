"""`rankscope top`: the board of a job that runs, whoever started it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rankscope.errors import UsageError
from rankscope.evidence.attach import attempt_of, pages_of
from rankscope.evidence.glance import Glances, WatchedRank
from rankscope.evidence.jobs import FoundJob, NoRanks, SeveralJobs, find_jobs, job_of_pids
from rankscope.report.board import Board
from rankscope.report.plain_text import plain
from rankscope.report.screen import cut
from rankscope.report.words.languages import add_lang, chosen_language, language
from rankscope.spelling import mended

_DESCRIPTION = """\
A board of a job that runs on this machine, whoever started it: what each rank does, its step and speed, where its time
goes, for whom it waits, processor, memory and GPU. Reads the ranks' pages and /proc alone: the job does not notice.
"""
_EPILOG = """\
examples:
  rankscope top                     the only job that runs here
  rankscope top runs/1116-1540-x    the one of that folder
  rankscope top 4121                any rank of the job, or its launcher
  rankscope top --once              one look, for a log or a script; so it is where there is no terminal

q leaves. Steps, phases and waits are known of jobs of 'rankscope run'.
"""
_PERIOD_S = 0.5
_ONCE_S = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope top --help')")


def top_command(arguments: list[str]) -> int:
    """The verb: 0 also where the job ends meanwhile, 2 for a mistake."""
    parser = _Parser(
        prog="rankscope top",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", nargs="?", metavar="RUN|PID", help="a run's folder, a rank or the launcher")
    parser.add_argument("--once", action="store_true", help="one look, then leave")
    add_lang(parser)
    chosen = parser.parse_args(arguments)
    lang = chosen_language(chosen.lang, os.environ)
    job = _chosen(chosen.job)
    ranks = [WatchedRank(rank.rank, rank.pid) for rank in job.ranks]
    glances = Glances(ranks, pages_of(job), attempt_of(job))
    board = Board(_program(job), lang)
    if chosen.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        board.lines(glances.take(), time.time())
        time.sleep(_ONCE_S)
        print("\n".join(board.lines(glances.take(), time.time())), flush=True)
        return 0
    with _whole_terminal():
        while True:
            seen = glances.take()
            _draw(board.lines(seen, time.time()), language(lang).label("q leaves"))
            if not any(each.alive for each in seen):
                break
            if _key_within(_PERIOD_S) in (b"q", b"Q", b"\x1b", b"\x04"):
                return 0
    print(language(lang).label("the job has ended"))
    return 0


def _chosen(wanted: str | None) -> FoundJob:
    if wanted is None:
        jobs = find_jobs()
        if len(jobs) == 1:
            return jobs[0]
        if not jobs:
            raise UsageError("no job of several ranks runs on this machine")
        raise _several(jobs)
    if not wanted:
        raise UsageError("give a run's folder or a process, or nothing for the only job that runs here")
    pids = [int(wanted)] if wanted.isdigit() and not Path(wanted).is_dir() else _pids_of_run(Path(wanted))
    try:
        return job_of_pids(pids)
    except SeveralJobs as several:
        raise _several(several.jobs) from several
    except NoRanks as none:
        raise UsageError(f"'{wanted}' is no rank and has none: {plain(none.command[:80])}") from none
    except (ProcessLookupError, OSError) as error:
        raise UsageError(f"'{wanted}' is no job that runs here: {error}") from error


def _several(jobs: Sequence[FoundJob]) -> UsageError:
    names = "; ".join(plain(f"{job.ranks[0].pid} ({len(job.ranks)} ranks: {job.command[:50]})") for job in jobs)
    return UsageError(f"{len(jobs)} jobs run there, say which one: rankscope top PID, of {names}")


def _program(job: FoundJob) -> str:
    """`train.py --lr 1`, without the interpreter, its options and the script's folder."""
    words = job.command.split()
    while words and (words[0].startswith("-") or "python" in words[0].rpartition("/")[2]):
        del words[0]
    words[:1] = [word.rpartition("/")[2] for word in words[:1]]
    return plain(" ".join(words)[:60]) or job.launcher


def _pids_of_run(folder: Path) -> list[int]:
    try:
        content = json.loads((folder / "ranks.json").read_text(encoding="utf-8"))
        return [int(content[rank]) for rank in sorted(content, key=int)]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"'{folder}' is neither a process nor the folder of a run: no ranks.json there") from error


@contextlib.contextmanager
def _whole_terminal() -> Iterator[None]:
    """The terminal's other page, keys as they are typed; as it was before when it is left, however that happens."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _draw(lines: list[str], last: str) -> None:
    columns, rows = os.get_terminal_size()
    shown = [*lines[: max(1, rows - 2)], last]
    sys.stdout.write("\x1b[H" + "".join(f"{cut(line, columns - 1)}\x1b[K\r\n" for line in shown) + "\x1b[J")
    sys.stdout.flush()


def _key_within(seconds: float) -> bytes:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1) if ready else b""
