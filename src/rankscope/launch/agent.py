"""Torch's elastic agent, taught to let the evidence be taken before it stops anyone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import PContext, SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from rankscope.evidence.model import Evidence
from rankscope.launch import passed_on
from rankscope.launch.departures import Departures
from rankscope.launch.events import ElasticEnded, RanksStopped, Ruled, Signalled, Started, StoppedElsewhere
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.nodes.channel import ChannelLost
from rankscope.launch.nodes.meeting import check_meeting_place
from rankscope.launch.nodes.opening import open_exchange
from rankscope.launch.nodes.roster import RESTARTED
from rankscope.launch.process_tree import become_subreaper, kill_descendants, reap_orphans, wake_to_end
from rankscope.launch.supervisor import Supervisor

_GRACE_AFTER_CTRL_C_S = 5
_GRACE_OF_THE_STUCK_S = 5
_WATCH_S = 0.4
"""Between two looks at ranks of which none has ended, beside elastic's own interval."""
_EXIT_BARRIER_S = 0.2
_START_S = 30.0
"""How long another node's question waits for the ranks to be started."""


class ScopeAgent(LocalElasticAgent):
    """`supervisor` is told of starts, stops and signals, and holds stops back; everything else is torch's own."""

    def __init__(self, *args: Any, supervisor: Supervisor, job: Job, grace_s: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._supervisor = supervisor
        self._job = job
        self._grace_s = grace_s
        self._departures = Departures()
        self._asked: Literal["stop", "restart"] | None = None
        self._ranks_run = threading.Event()
        """Those of this attempt; the launchers have met by then."""
        supervisor.serve(self)
        for number in passed_on.SIGNALS:
            if number not in _handled() and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda got, _frame: passed_on.pass_on(got, job))

    def ask_to_stop(self, *, restart: bool) -> None:
        self._asked = "restart" if restart else "stop"
        self._departures.wake()

    def forgo_restarts(self) -> None:
        self._remaining_restarts = 0

    def interrupt(self, number: int) -> None:
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result: RunResult = super().run(role)
        finally:
            self._supervisor.feed(ElasticEnded())
        return result

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self._job.nodes is not None:
            self._job.nodes.leave_attempt()
        super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        become_subreaper()
        attempt = worker_group.spec.max_restarts - self._remaining_restarts
        self._check_meeting_place(worker_group)
        self._ranks_run.clear()
        self._meet_other_nodes(worker_group, attempt)
        started_at = time.time()
        pids: dict[int, Any] = super()._start_workers(worker_group)
        context = self._pcontext
        assert context is not None
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
        self._asked = None
        self._supervisor.feed(
            Started(
                attempt,
                self._job.world_size,
                self._remaining_restarts,
                several_nodes=(worker_group.group_world_size or 1) > 1,
            )
        )
        self._ranks_run.set()
        self._departures.expect(pids.values())
        self._take_over_closing(context)
        self._take_over_signals()
        return pids

    def _check_meeting_place(self, worker_group: WorkerGroup) -> None:
        nodes = worker_group.group_world_size or 1
        store: Any = worker_group.store
        address: str | None = getattr(worker_group, "master_addr", None)  # set by the rendezvous
        if nodes > 1 and address is not None and store is not None:
            attempt = worker_group.spec.max_restarts - self._remaining_restarts
            check_meeting_place(
                store,
                f"rankscope/meeting/{attempt}",
                worker_group.group_rank or 0,
                nodes,
                address,
                self._job.node_key,
                only_sealed=self._job.key_is_given,
                run_id=worker_group.spec.rdzv_handler.get_run_id(),
            )

    def _meet_other_nodes(self, worker_group: WorkerGroup, attempt: int) -> None:
        """Small facts and evidence travel over the store that elastic already runs. Before the ranks start: a launcher
        that is lost with them is known to the others by then."""
        if self._job.nodes is not None:
            self._job.nodes.close(RESTARTED)
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
                collect=self._collect_for_nodes,
                hand_over=self._hear_nodes,
                note=self._job.note_problem,
                key=self._job.node_key,
                only_sealed=self._job.key_is_given,
                run_id=worker_group.spec.rdzv_handler.get_run_id(),
            )
        except (ChannelLost, RuntimeError, OSError) as error:
            self._job.note_problem(f"the other nodes could not be reached: {type(error).__name__}: {error}")

    def _collect_for_nodes(self, trigger: str) -> Evidence:
        self._ranks_run.wait(_START_S)
        return self._job.collect(trigger)

    def _hear_nodes(self, event: Ruled | StoppedElsewhere) -> None:
        self._ranks_run.wait(_START_S)
        if not (self._job.may_shrink and isinstance(event, StoppedElsewhere)):
            self._supervisor.feed(event)

    def _take_over_closing(self, context: PContext) -> None:
        """Whatever makes elastic stop the ranks passes through `close`: the one place to be before it."""
        close = context.close

        def close_with_evidence(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            hurry = self._supervisor.hold_back()
            # Who was stopped and goes on may stop again, or be too far gone for signals: torch then kills it.
            hurry = bool(wake_to_end(os.getpid())) or hurry
            if death_sig == signal.SIGINT:
                # A rank inside a collective never sees Ctrl-C; one that can, may clean up.
                _ask_to_end(self._job.living(), _GRACE_AFTER_CTRL_C_S if self._grace_s is None else self._grace_s)
                death_sig = signal.SIGTERM
            elif self._grace_s is not None:
                timeout = self._grace_s
            close(death_sig, min(timeout, _GRACE_OF_THE_STUCK_S) if hurry else timeout)
            self._job.poll()
            kill_descendants(os.getpid())
            reap_orphans({process.pid for process in self._job.ranks})
            self._supervisor.feed(RanksStopped())

        context.close = close_with_evidence  # type: ignore[method-assign]

    def _take_over_signals(self) -> None:
        for number in _handled():
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: Any) -> None:
        self._supervisor.feed(Signalled(number, time.monotonic(), self._job.ends()))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._asked is None:
            self._departures.wait(_WATCH_S)
        if self._asked is None:
            result: RunResult = super()._monitor_workers(worker_group)
            return result
        if self._asked == "stop":
            self._remaining_restarts = 0
        self._asked = None
        return RunResult(state=WorkerState.UNHEALTHY)

    def _exit_barrier(self) -> None:
        """Elastic waits here for up to five minutes until the other nodes are done, inside a call of the store that no
        signal interrupts. This thread stays free to take one, and waits for nobody who will not come."""
        wait: Callable[[], None] = super()._exit_barrier
        if (self._worker_group.group_world_size or 1) < 2:
            wait()
            return
        waiting = threading.Thread(target=wait, name="rankscope-exit-barrier", daemon=True)
        waiting.start()
        while waiting.is_alive() and self._asked is None:
            nodes = self._job.nodes
            left = nodes is not None and nodes.all_left()
            waiting.join(_EXIT_BARRIER_S)
            if left:
                return


def _handled() -> list[signal.Signals]:
    """The signals that end the run, as torchrun's `--signals-to-handle` names them."""
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")
    numbers = [getattr(signal, name.strip(), None) for name in names]
    return [number for number in numbers if isinstance(number, signal.Signals)]


def _poller(context: PContext, local_rank: int) -> Callable[[], int | None]:
    assert isinstance(context, SubprocessContext)  # ranks are always programs, with --run-path too
    process = context.subprocess_handlers[local_rank].proc
    return process.poll


def _ask_to_end(processes: list[RankProcess], seconds: float) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGINT)
        except ProcessLookupError:
            continue  # it has ended by itself
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)
