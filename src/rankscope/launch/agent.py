"""Torch's elastic agent, taught to let the evidence be taken before it stops anyone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import PContext, SignalException
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, SubprocessContext

from rankscope.launch.departures import Departures
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.nodes.channel import ChannelLost
from rankscope.launch.nodes.opening import open_exchange
from rankscope.launch.process_tree import become_subreaper, kill_descendants, reap_orphans
from rankscope.launch.supervisor import Supervisor
from rankscope.report import live

_GRACE_AFTER_CTRL_C_S = 5
_GRACE_OF_THE_STUCK_S = 5
_WATCH_S = 0.4
"""Between two looks at ranks of which none has ended, beside elastic's own interval."""
_SAME_SIGNAL_S = 0.25
"""`timeout` and schedulers send a signal to the process and to its group: that is one request, not two."""


class ScopeAgent(LocalElasticAgent):
    """`supervisor` is told of starts and asked before stops; everything else is torch's own."""

    def __init__(self, *args: Any, supervisor: Supervisor, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._supervisor = supervisor
        self._job = job
        self._signalled_at = 0.0
        self._departures = Departures()
        supervisor.wake_agent = self._departures.wake
        supervisor.restarts_left = lambda: self._remaining_restarts

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        become_subreaper()
        started_at = time.time()
        pids: dict[int, Any] = super()._start_workers(worker_group)
        context = self._pcontext
        assert context is not None
        attempt = worker_group.spec.max_restarts - self._remaining_restarts
        self._job.started(
            attempt,
            worker_group.workers[0].world_size,
            [
                RankProcess(
                    rank=worker.global_rank,
                    local_rank=worker.local_rank,
                    pid=pids[worker.local_rank],
                    started_at=started_at,
                    poll=_poller(context, worker.local_rank),
                )
                for worker in worker_group.workers
            ],
        )
        self._departures.expect(pids.values())
        self._take_over_closing(context)
        self._take_over_signals()
        self._meet_other_nodes(worker_group, attempt)
        return pids

    def _meet_other_nodes(self, worker_group: WorkerGroup, attempt: int) -> None:
        """Small facts and evidence travel over the store that elastic already runs."""
        if self._job.nodes is not None:
            self._job.nodes.close("restarted")
            self._job.nodes = None
        if (worker_group.group_world_size or 1) < 2:
            return
        # Each round of a dynamic rendezvous has keys of its own; the static one has a single round for all attempts.
        static = worker_group.spec.rdzv_handler.get_backend() == "static"
        try:
            self._job.nodes = open_exchange(
                worker_group.store,
                node=worker_group.group_rank or 0,
                nodes=worker_group.group_world_size or 1,
                host=self._job.host,
                ranks=tuple(worker.global_rank for worker in worker_group.workers),
                attempt_key=f"rankscope/attempt/{attempt}" if static else "rankscope/attempt",
                collect=self._job.collect,
                on_ruling=self._supervisor.ruled,
                note=self._job.note_problem,
            )
        except (ChannelLost, RuntimeError, OSError) as error:
            self._job.note_problem(f"the other nodes could not be reached: {type(error).__name__}: {error}")

    def _take_over_closing(self, context: PContext) -> None:
        """Whatever makes elastic stop the ranks passes through `close`: the one place to be before it."""
        close = context.close

        def close_with_evidence(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            self._supervisor.before_stop()
            if death_sig == signal.SIGINT:
                # A rank inside a collective never sees Ctrl-C; one that can, may clean up.
                _ask_to_end(self._job.living(), _GRACE_AFTER_CTRL_C_S)
                death_sig = signal.SIGTERM
            if self._supervisor.stopped_for_hang or self._supervisor.stopped_for_nan:
                timeout = min(timeout, _GRACE_OF_THE_STUCK_S)
            close(death_sig, timeout)
            self._job.poll()
            kill_descendants(os.getpid())
            reap_orphans({process.pid for process in self._job.ranks})

        context.close = close_with_evidence  # type: ignore[method-assign]

    def _take_over_signals(self) -> None:
        """The first signal stops the job in order; the second one at once."""
        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(","):
            number = getattr(signal, name.strip(), None)
            if isinstance(number, signal.Signals):
                signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self._supervisor.interrupted_by is not None and now - self._signalled_at < _SAME_SIGNAL_S:
            return
        if self._supervisor.interrupted_by is not None:
            live.say("stopped at once")
            self._job.poll()  # who had ended before that did so by itself
            self._job.stopping = True
            kill_descendants(os.getpid())
            self._job.poll()
            self._supervisor.write(self._supervisor.verdict())
            os._exit(128 + number)
        self._signalled_at = now
        self._supervisor.interrupted(number)
        live.say(f"{signal.Signals(number).name}: taking a last look, then stopping the ranks (again: stop at once)")
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if not self._supervisor.stop_requested:
            self._departures.wait(_WATCH_S)
        if self._supervisor.stop_requested:
            self._supervisor.stop_requested = False
            if not self._supervisor.restarts_hangs or self._supervisor.stopped_for_nan:
                self._remaining_restarts = 0
            elif self._remaining_restarts > 0:
                self._supervisor.stopped_for_hang = False
            return RunResult(state=WorkerState.UNHEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        return result


def _poller(context: PContext, local_rank: int) -> Callable[[], int | None]:
    if isinstance(context, SubprocessContext):
        process = context.subprocess_handlers[local_rank].proc
        return process.poll
    assert isinstance(context, MultiprocessContext)
    spawned = context._pc
    assert spawned is not None
    child = spawned.processes[local_rank]
    return lambda: child.exitcode


def _ask_to_end(processes: list[RankProcess], seconds: float) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGINT)
        except ProcessLookupError:
            continue  # it has ended by itself
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)
