"""What is promised of a run's end, whatever happens in whatever order."""

from __future__ import annotations

import signal

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from run_events import ALIVE, EVENTS, FAILED, STOPPED, WELL, ends, evidence, started, taken

from rankscope.diagnosis.verdict import Verdict
from rankscope.launch import events as on
from rankscope.launch.ending import step
from rankscope.launch.events import Action, Event
from rankscope.launch.run_state import Policy, State


def agree(verdict: Verdict, code: int) -> None:
    """What is said and what is returned are the same."""
    said = f"{verdict.outcome}: {verdict.headline} and exit code {code}"
    if verdict.outcome in ("ok", "hang", "crash", "interrupted", "unknown"):
        assert (code == 0) == (verdict.outcome == "ok"), said
    if "was stopped by SIG" in verdict.headline:
        number = signal.Signals[verdict.headline.partition("was stopped by ")[2].split()[0].strip(".;,:")]
        assert code in (128 + number, 128 + 15, 128 + 2), said


STOPS = (on.StopRanks, on.Restart, on.LetGo, on.EndNow)


class Machine:
    """Carries out actions as the supervisor does, and checks what must hold at every moment."""

    def __init__(self, policy: Policy, several: bool, restarts: int) -> None:
        self.state = State(policy)
        self.attempt, self.restarts, self.several = 0, restarts, several
        self.answers: list[Event] = []
        self.kept = self.excused = self.waiting = False
        self.codes: list[int] = []
        self.gone = False
        self.verdict: Verdict | None = None
        self.now = 100.0
        self.begin()

    def begin(self) -> None:
        self.kept = self.excused = False
        self.feed(started(self.attempt, restarts_left=self.restarts, several=self.several))

    def feed(self, event: Event) -> None:
        if self.gone:
            return
        if isinstance(event, on.LookBroke | on.Ruled | on.StoppedElsewhere):  # the last look comes when elastic stops
            self.excused = True
        if isinstance(event, on.ElasticStops):
            self.waiting = True
            self.excused |= not event.ends or all(end.code == 0 for end in event.ends)
        before = self.state.signal
        self.state, actions = step(self.state, event)
        if isinstance(event, on.Signalled) and before is not None:
            self.excused |= self.state.rushed is not None
        for action in actions:
            if not self.gone:
                self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, STOPS) and self.state.phase != "over":
            assert self.kept or self.excused, f"{action} before any evidence was kept"
        match action:
            case on.Keep():
                self.kept = True
                self.answers.append(on.Kept())
            case on.TakeEvidence(trigger):
                found = taken("crash" if trigger == "failure" else "ok", trigger)
                self.answers.append(replace(found, evidence=evidence(trigger, attempt=self.attempt)))
            case on.AwaitRuling():
                self.answers.append(on.NoRuling())
            case on.LetGo():
                assert not self.state.unkept or self.state.phase in ("killed", "over", "closing")
                self.waiting = False
            case on.EndNow():
                self.answers = [on.Over(STOPPED)]
            case on.Conclude(verdict):
                self.verdict = verdict
            case on.Exit(code) | on.ExitNow(code):
                if self.verdict is not None:
                    agree(self.verdict, code)
                self.codes.append(code)
                self.gone = isinstance(action, on.ExitNow)
            case on.Interrupt():
                assert not self.state.elastic_ended, "nobody is left to take what it raises"

    def instead_of_evidence(self, event: Event) -> None:
        self.answers = [each for each in self.answers if not isinstance(each, on.Taken)]
        self.feed(event)

    def answer(self) -> None:
        if self.answers:
            self.feed(self.answers.pop(0))


POLICIES = st.builds(
    Policy,
    on_hang=st.sampled_from(["auto", "stop", "report", "restart"]),
    on_nan=st.sampled_from(["report", "stop"]),
    on_corrupt=st.sampled_from(["report", "stop"]),
)
_OF_NODES = on.Ruled | on.StoppedElsewhere
OUTSIDE = [event for event in EVENTS if isinstance(event, on.Looked | on.Recovered | _OF_NODES | on.ElasticLate)]


def happen(machine: Machine, data: st.DataObject) -> None:
    """One thing, of those that can happen now."""
    looking = any(isinstance(event, on.Taken) for event in machine.answers)
    match data.draw(
        st.sampled_from(["outside", "answer", "answer", "signal", "cut", "stops", "broke", "asked", "again"])
    ):
        case "outside":
            event = data.draw(st.sampled_from(OUTSIDE))
            if isinstance(event, on.Looked):
                event = replace(event, evidence=replace(event.evidence, attempt=machine.attempt))
            if machine.several or not isinstance(event, _OF_NODES):
                machine.feed(event)
        case "answer":
            machine.answer()
        case "signal":
            machine.now += data.draw(st.sampled_from([0.1, 5.0]))
            machine.feed(on.Signalled(15, machine.now, ALIVE))
        case "cut":
            machine.feed(on.CutShort(15))
        case "stops" if not machine.waiting:
            machine.feed(on.ElasticStops(data.draw(st.sampled_from([ALIVE, FAILED]))))
        case "broke" if looking:
            machine.instead_of_evidence(on.LookBroke("oops"))
        case "asked" if looking and machine.several:
            machine.instead_of_evidence(on.SpeakerAsked())
        case "again" if machine.state.phase == "stopping" and machine.restarts and machine.state.signal is None:
            machine.restarts, machine.attempt = machine.restarts - 1, machine.attempt + 1
            machine.begin()


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_promises_hold_in_any_order_of_events(data: st.DataObject) -> None:
    machine = Machine(data.draw(POLICIES), data.draw(st.booleans()), data.draw(st.integers(0, 1)))
    for _ in range(data.draw(st.integers(0, 12))):
        happen(machine, data)
    while machine.answers:
        machine.answer()
    assert machine.gone or not machine.waiting, "torch's agent is let go in the end"
    stopped = machine.state.stopped_for
    cut = machine.state.cut_by
    final = data.draw(st.sampled_from([WELL, STOPPED, ends(0, 0, by_launcher=True), ends(-15, 3)]))
    ended = data.draw(st.booleans())
    if ended:
        machine.feed(on.ElasticEnded())
    late = data.draw(st.lists(st.sampled_from([0.1, 5.0]), max_size=2))
    for pause in late if ended else ():
        machine.now += pause
        machine.feed(on.Signalled(2, machine.now, final))
    machine.feed(on.Over(final))
    while machine.answers:
        machine.answer()
    for pause in late:
        machine.now += pause
        machine.feed(on.Signalled(2, machine.now, final))
    assert machine.gone or machine.state.phase == "over"
    assert len(set(machine.codes)) == 1, "whatever comes after the last word, the code is the one that it told"
    if cut is not None or any(end.code != 0 for end in final):
        assert machine.codes != [0]
    if stopped is not None and any(end.by_launcher for end in final):
        assert machine.codes != [0]
