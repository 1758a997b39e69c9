"""Between the run and `ending`: takes in what happens, from whatever thread, and carries out what follows from it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.run import LauncherRaised
from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence
from rankscope.evidence.store import save_evidence
from rankscope.launch import afterwards
from rankscope.launch import events as on
from rankscope.launch.ending import step
from rankscope.launch.events import Action, Event
from rankscope.launch.job import Job
from rankscope.launch.pace import Pace
from rankscope.launch.page import leave_page
from rankscope.launch.process_tree import kill_descendants
from rankscope.launch.run_state import Policy, State, all_well
from rankscope.launch.verdict_file import VerdictFile
from rankscope.launch.watch import Watcher
from rankscope.mask import mask_text
from rankscope.private_files import make_own_folder
from rankscope.report import live
from rankscope.report.conclude import annotated, examine
from rankscope.report.words.languages import language
from rankscope.streams import flush_streams

_SETTLE_S = 1.5
"""How long after a rank's failure the others are given to show whether they fail with it."""
_LAST_OUTPUT_S = 2.0


class Elastic(Protocol):
    """Torch's agent, as far as it can be asked for something."""

    def ask_to_stop(self, *, restart: bool) -> None: ...

    def forgo_restarts(self) -> None: ...

    def interrupt(self, number: int) -> None:
        """Only in the main thread: it raises what torch expects of a signal."""


class Supervisor:
    """`show` prints the last verdict for people; with `page`, a run that ends well leaves one too. `alert` is handed
    what is found while the job goes on."""

    def __init__(
        self,
        job: Job,
        policy: Policy,
        stall_after_s: float | None,
        show: Callable[[Verdict], None],
        *,
        page: bool = False,
        tell: Callable[[live.Line], None] = live.tell,
        alert: Callable[[Verdict], None] | None = None,
    ) -> None:
        self._job = job
        self._tell = tell
        self._page = page
        self._alert = alert
        self._kept: tuple[str, Evidence] | None = None
        """What was kept last, and as whose evidence."""
        self._show = show
        self._pace = Pace()
        self._watcher = Watcher(job, stall_after_s, self._pace, self.feed)
        self._state = State(policy)
        self._turn = threading.RLock()
        self._turning: int | None = None
        self._late: deque[Event] = deque()
        self._elastic: Elastic | None = None
        self._let_go = threading.Event()
        self._hurry = False
        self._verdict: Verdict | None = None
        self._file = VerdictFile(job.folder, job.note_problem)
        self._code = 1

    @property
    def verdict(self) -> Verdict | None:
        """The last one, once it is concluded."""
        return self._verdict

    @property
    def speaks(self) -> bool:
        """Of several nodes one tells the world; another only where it had to look alone."""
        return self._job.nodes is None or self._job.nodes.speaks or self._kept is not None

    def serve(self, elastic: Elastic) -> None:
        """From now on it is asked to stop ranks."""
        self._elastic = elastic

    def start(self) -> None:
        self._watcher.start()

    def finish(self) -> None:
        """Torch's agent has come to its end."""
        self._watcher.stop()
        self._say_goodbye()

    def conclude(self, failure: BaseException | None) -> int:
        """The last word on the run, said, written and as an exit code; `failure`: what elastic itself raised."""
        raised = None
        if failure is not None:
            message = mask_text(" ".join(str(failure).split()))[:300] or type(failure).__name__
            raised = LauncherRaised(type(failure).__name__, message)
        suspected = bool(self._job.ranks) and afterwards.numbers_suspected(self._job)
        self.feed(on.Over(self._job.ends(), suspected, raised))
        return self._code

    def note(self, fact: Fact) -> None:
        """Something to know beside the verdict, whatever that will be."""
        self.feed(on.Noted(fact))

    def hold_back(self) -> bool:
        """Called before torch's agent stops ranks; returns when it may, and whether it should hurry."""
        self._let_go.clear()
        self.feed(on.ElasticStops(self._job.ends()))
        self._let_go.wait()
        return self._hurry

    def feed(self, event: Event) -> None:
        """From any thread, and from signal handlers, whatever the main thread is at."""
        if self._turning == threading.get_ident():
            self._late.append(event)  # a signal, in the very middle of a turn of this thread
            return
        with self._turn:
            self._turning = threading.get_ident()
            try:
                self._state, actions = step(self._state, event)
            finally:
                self._turning = None
            late = list(self._late)
            self._late.clear()
        for action in actions:
            self._carry_out(action)
        for each in late:
            self.feed(each)

    def _carry_out(self, action: Action) -> None:
        match action:
            case on.Settle():
                self._settle()
            case on.TakeEvidence():
                self._take_evidence(action)
            case on.AwaitRuling():
                self._await_ruling()
            case on.StopRanks() | on.Restart() if self._elastic is not None:
                self._elastic.ask_to_stop(restart=isinstance(action, on.Restart))
            case on.NoRestart() if self._elastic is not None:
                self._elastic.forgo_restarts()
            case on.LetGo(hurry):
                self._ours_to_stop()
                self._hurry = hurry
                self._let_go.set()
            case on.Interrupt(number) if self._elastic is not None:
                self._elastic.interrupt(number)
            case on.SeeToTheEnd(within_s):
                self._see_to_the_end(within_s)
            case on.EndNow():
                self._end_now()
            case on.Exit(code):
                self._code = code
            case on.ExitNow(code):
                live.leave_screen()
                flush_streams()
                os._exit(code)
            case _:
                self._put_down(action)

    def _put_down(self, action: Action) -> None:
        """What is said, sent and written. A fault of ours in it must not keep the ranks from being stopped."""
        try:
            match action:
                case on.Keep(verdict, evidence):
                    self._file.write(verdict_to_json(verdict))
                    self._kept = verdict.evidence, evidence
                    make_own_folder(self._job.folder / "evidence")
                    save_evidence(evidence, self._job.folder / verdict.evidence)
                case on.Write(verdict):
                    self._file.write(verdict_to_json(verdict))
                case on.TellNodes() if self._job.nodes is not None:
                    self._job.nodes.rule(action)
                case on.TellSignal(number) if self._job.nodes is not None:
                    self._job.nodes.tell_signal(number)
                case on.Tell(line):
                    self._tell(line)
                    if isinstance(line, live.Detected) and line.then != "give-up" and self._alert is not None:
                        self._alert(line.verdict)
                case on.Conclude(verdict, notes):
                    self._verdict = afterwards.complete(verdict, notes, self._job, self._pace)
                    self._file.write(verdict_to_json(self._verdict))
                    self._file.release()
                    self._leave_page(self._verdict)
                case on.Show() if self._verdict is not None:
                    self._job.pump.finish(_LAST_OUTPUT_S)
                    live.leave_screen()
                    self._show(self._verdict)
                case on.SayGoodbye():
                    self._say_goodbye()
        except EvidenceError as error:
            self._job.note_problem(str(error))
        except Exception as error:  # noqa: BLE001
            self._job.note_problem(f"{type(action).__name__.lower()} failed: {type(error).__name__}: {error}")
        if isinstance(action, on.Keep):
            self.feed(on.Kept())

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while self._job.living() and time.monotonic() < deadline:
            time.sleep(0.05)
            self._job.poll()

    def _take_evidence(self, wanted: on.TakeEvidence) -> None:
        nodes = self._job.nodes
        try:
            if nodes is None or wanted.trigger != "failure":
                evidence = self._job.collect(wanted.trigger)
            elif wanted.alone:
                evidence = nodes.gather_alone(wanted.trigger)
            else:
                gathered = nodes.gather(wanted.trigger)
                if gathered is None:
                    self.feed(on.SpeakerAsked())
                    return
                evidence = gathered
            ruling = examine(evidence)
        except Exception as error:  # noqa: BLE001  a fault of ours must not keep the ranks from being stopped
            self.feed(on.LookBroke(mask_text(f"{type(error).__name__}: {error}")))
            return
        self.feed(on.Taken(ruling, evidence, bool(self._job.living())))

    def _await_ruling(self) -> None:
        nodes = self._job.nodes
        if nodes is None or not nodes.await_ruling(self._let_go):
            self.feed(on.NoRuling())

    def _leave_page(self, verdict: Verdict) -> None:
        """The verdict is written by now: whatever becomes of the page, it stands."""
        if verdict.outcome == "ok" and not self._page:
            return
        evidence = self._kept[1] if self._kept is not None and self._kept[0] == verdict.evidence else None
        if evidence is None and self._job.nodes is not None:
            return  # another node has diagnosed, and its folder holds the page
        try:
            if evidence is None and verdict.outcome == "ok":
                evidence = self._job.collect("end")
            self._verdict = leave_page(self._job.folder, verdict, evidence)
        except Exception as error:  # noqa: BLE001  a page that cannot be made is a note, no more
            why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._verdict = annotated(
                verdict, [language(verdict.language).label("report.html could not be made: {why}", why=why)]
            )
        self._file.write(verdict_to_json(self._verdict))

    def _see_to_the_end(self, within_s: float) -> None:
        def late() -> None:
            self._job.poll()
            self.feed(on.ElasticLate(bool(self._job.living())))

        timer = threading.Timer(within_s, late)
        timer.name, timer.daemon = "rankscope-end", True
        timer.start()

    def _end_now(self) -> None:
        self._job.poll()  # who had ended before that did so by itself
        self._ours_to_stop()
        kill_descendants(os.getpid())
        self.feed(on.Over(self._job.ends()))

    def _ours_to_stop(self) -> None:
        """From now on the ranks end because of us, and what they raise about that is no news."""
        if self._job.nodes is not None and all_well(self._job.ends()):
            return  # the job may go on elsewhere, and is watched on
        self._job.stopping = True
        self._job.pump.told_to_stop([process.local_rank for process in self._job.living()])

    def _say_goodbye(self) -> None:
        if self._job.nodes is not None:
            stopped = self._state.cut_by is not None
            self._job.nodes.close("ended", self._state.signal if stopped else None)
