"""Runs the command, hands its ranks over to the watcher as they come, and stops it where that was decided."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

from rankscope.errors import EvidenceError, UsageError
from rankscope.evidence.pages import read_heartbeat
from rankscope.launch import passed_on
from rankscope.launch.events import RanksStopped, Signalled, Started
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.process_tree import become_subreaper, kill_descendants, reap_orphans
from rankscope.launch.supervisor import Supervisor
from rankscope.launch.watched.ends import Ends
from rankscope.launch.watched.ranks import Finder, Rank, is_complete, newest_start

_PERIOD_S = 0.25
_LATE_S = 20.0
"""A world that is not complete that long after its last rank: the rest is on other machines, or will never come."""
_GRACE_OF_THE_STUCK_S = 5.0
_LAST_RANKS_S = 3.0
_CLOCK_S = 1.0
"""How exactly the kernel's time of a start fits ours."""
_LEFT_BEHIND_S = 15.0
"""After a rank has failed, its launcher has that long to end the others, before they are looked at: whoever makes no
progress then waits for one that is dead."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class CommandAgent:
    """In the place that torch's agent has in `rankscope run`."""

    def __init__(self, job: Job, supervisor: Supervisor, ends: Ends, finder: Finder, grace_s: float) -> None:
        self._job = job
        self._supervisor = supervisor
        self._ends = ends
        self._finder = finder
        self._grace_s = grace_s
        self._generation = -1
        self._handed: dict[int, RankProcess] = {}
        """Rank → process, of the job that is watched now."""
        self._passed: set[int] = set()
        """Processes of earlier ones, and of others beside it."""
        self._failed_at: float | None = None
        self._asked = False
        self._signal: int | None = None
        self.stopped = False
        """We ended the command; its exit code is our doing."""
        supervisor.serve(self)

    def ask_to_stop(self, *, restart: bool) -> None:  # noqa: ARG002  nobody restarts somebody else's command
        self._asked = True
        self._ends.wake()

    def forgo_restarts(self) -> None:
        """Whether somebody else's launcher restarts its ranks is its own affair."""

    def interrupt(self, number: int) -> None:
        self._signal = number
        self._ends.wake()

    def run(self, command: list[str]) -> int:
        """Until the command has ended; its exit code, as a shell would tell it."""
        become_subreaper()
        # In a session of its own: a Ctrl-C must not reach the ranks before they were looked at.
        try:
            self._command = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise UsageError(f"'{command[0]}' cannot be started: {error.strerror}") from error
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._signalled)
        for number in passed_on.SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        while self._command.poll() is None and not self._asked and self._signal is None:
            self._ends.wait(_PERIOD_S)
            self._find_ranks(time.time())
            self._mind_failures(time.time())
        if self._command.poll() is None:
            self._stop()
        else:
            self._see_the_last()
        code = self._command.wait()
        kill_descendants(os.getpid())
        reap_orphans(())
        return code if code >= 0 else 128 - code

    @property
    def saw_ranks(self) -> bool:
        return self._generation >= 0

    def _signalled(self, number: int, _frame: Any) -> None:
        self._supervisor.feed(Signalled(number, time.monotonic(), self._job.ends()))

    def _pass_on(self, number: int, _frame: Any) -> None:
        if passed_on.catches(self._command.pid, number):
            os.kill(self._command.pid, number)
        else:
            passed_on.pass_on(number, self._job)

    # Ranks come and go.

    def _find_ranks(self, now: float, *, at_the_end: bool = False) -> None:
        ranks = self._finder.ranks(now, without=self._passed)
        for rank in ranks:
            self._ends.follow(rank.pid, rank.page)
        if all(self._is_handed(rank) for rank in ranks):
            return
        others = [rank for rank in ranks if rank.rank in self._handed and not self._is_handed(rank)]
        left_over = {rank.pid for rank in others if self._was_beside_it(rank)}
        if left_over:
            self._passed |= left_over
            return
        replaced = [self._handed[rank.rank] for rank in others]
        if any(self._ends.of(old.pid) is None for old in replaced):
            self._note_other_job(ranks)
            return
        if replaced:
            self._passed |= {process.pid for process in self._handed.values()}
            self._handed = {}
            ranks = self._finder.ranks(now, without=self._passed)
        if is_complete(ranks) or at_the_end or now - newest_start(ranks) > _LATE_S:
            self._hand_over(ranks)

    def _is_handed(self, rank: Rank) -> bool:
        known = self._handed.get(rank.rank)
        return known is not None and known.pid == rank.pid

    def _was_beside_it(self, rank: Rank) -> bool:
        """It ran already when the rank of that number ended: something that the rank had started and left behind."""
        ended = self._ends.of(self._handed[rank.rank].pid)
        return ended is not None and rank.started_at < ended.at - _CLOCK_S

    def _note_other_job(self, ranks: list[Rank]) -> None:
        """Two processes of the same number that both live and have joined are ranks of two jobs."""
        others = [rank for rank in ranks if rank.rank in self._handed and not self._is_handed(rank)]
        self._passed |= {rank.pid for rank in others}
        if any(rank.joined for rank in others):
            self._job.note_problem("the command runs several jobs at once: only the first of them was watched")

    def _hand_over(self, ranks: list[Rank]) -> None:
        first = not self._handed
        self._handed = {
            rank.rank: self._handed.get(rank.rank)
            or RankProcess(rank.rank, rank.local_rank, rank.pid, rank.started_at, lambda: None, page=rank.page)
            for rank in ranks
        }
        self._generation += first
        world = ranks[0].world
        self._job.started(self._generation, world, list(self._handed.values()))
        if first:
            self._failed_at = None
            self._supervisor.feed(Started(self._generation, world, restarts_left=0, several_nodes=False))

    # Ranks that fail.

    def _mind_failures(self, now: float) -> None:
        """The evidence is taken at once; what becomes of the others is the command's affair, as long as it minds it."""
        self._job.poll()
        if self._failed_at is None:
            if self._job.failed():
                self._failed_at = now
                self._supervisor.hold_back()
            return
        living = self._job.living()
        if living and now - self._failed_at > _LEFT_BEHIND_S and not any(self._goes_on(p, now) for p in living):
            self._asked = True

    def _goes_on(self, process: RankProcess, now: float) -> bool:
        page = self._job.page_of(process)
        if page is None:
            return True
        try:
            return now - read_heartbeat(page).changed_at < _LEFT_BEHIND_S
        except EvidenceError:
            return True  # nothing is known: it is left alone

    # The end.

    def _see_the_last(self) -> None:
        """The command has ended: its ranks end with it, or have."""
        deadline = time.monotonic() + _LAST_RANKS_S
        while True:
            self._find_ranks(time.time(), at_the_end=True)
            self._job.poll()
            if not self._job.living() or time.monotonic() > deadline:
                break
            self._ends.wait(0.1)
        if self._job.failed() and self._failed_at is None:
            self._supervisor.hold_back()
        self._job.stopping = True

    def _stop(self) -> None:
        self.stopped = True
        hurry = self._supervisor.hold_back()
        self._ask_command(self._signal or signal.SIGTERM)
        try:
            self._command.wait(min(self._grace_s, _GRACE_OF_THE_STUCK_S) if hurry else self._grace_s)
        except subprocess.TimeoutExpired:
            if not hurry:
                self._job.note_problem(f"the command did not end within {self._grace_s:g} s and was killed")
        self._job.poll()
        kill_descendants(os.getpid())
        reap_orphans({self._command.pid})
        self._supervisor.feed(RanksStopped())

    def _ask_command(self, number: int) -> None:
        try:
            os.killpg(self._command.pid, number)
        except ProcessLookupError:
            return  # it has ended by itself
