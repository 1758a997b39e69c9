"""The end of a run as a table: every state and every event, and what is promised of all of them."""

from __future__ import annotations

import typing

import pytest
from msgspec.structs import replace
from run_events import (
    ALIVE,
    EVENTS,
    FAILED,
    STOPPED,
    WELL,
    ends,
    evidence,
    hang,
    looked,
    ruled,
    ruling,
    started,
    taken,
    verdict,
)

from rankscope.diagnosis.facts.run import EarlierAttempt, LauncherRaised
from rankscope.diagnosis.verdict import Outcome
from rankscope.evidence.model import Exit
from rankscope.launch import events as on
from rankscope.launch.ending import ANSWERS, SAME_SIGNAL_S, step
from rankscope.launch.events import Action, Event
from rankscope.launch.run_state import Phase, Policy, State
from rankscope.report import live

PHASES: tuple[Phase, ...] = typing.get_args(Phase)

STATES = tuple(
    replace(base, phase=phase)
    for phase in PHASES
    for policy in (Policy(), Policy("restart", "stop", "stop"), Policy("report"), Policy("stop"))
    for base in (
        State(policy, world_size=2),
        State(policy, world_size=2, several_nodes=True, restarts_left=1),
        State(policy, world_size=2, found=verdict("hang"), found_for="hang", reported="likely", unkept=1),
        State(policy, world_size=2, several_nodes=True, found=verdict("crash"), stopped_for="failure", seen_to=True),
        State(policy, world_size=2, signal=15, signal_at=100.0, cut_by=15, interrupt_due=True),
        State(policy, world_size=2, numbers=verdict("nan"), stopped_for="numbers", ends=STOPPED),
    )
)


def walk(*happened: Event, policy: Policy = Policy()) -> tuple[State, list[Action]]:  # noqa: B008  frozen
    """From the start; everything that is kept is kept at once."""
    state, done = State(policy), list[Action]()
    for event in happened:
        state, done = _one(state, event, done)
    return state, done


def _one(state: State, event: Event, done: list[Action]) -> tuple[State, list[Action]]:
    state, actions = step(state, event)
    for action in actions:
        done = [*done, action]
        if isinstance(action, on.Keep):
            state, done = _one(state, on.Kept(), done)
    return state, done


def code(*happened: Event, policy: Policy = Policy()) -> int:  # noqa: B008
    (end,) = [action for action in walk(*happened, policy=policy)[1] if isinstance(action, on.Exit | on.ExitNow)]
    return end.code


def last(*happened: Event, policy: Policy = Policy()) -> on.Conclude:  # noqa: B008
    (concluded,) = [action for action in walk(*happened, policy=policy)[1] if isinstance(action, on.Conclude)]
    return concluded


def kinds(actions: list[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


def told(actions: list[Action]) -> list[live.Line]:
    return [action.line for action in actions if isinstance(action, on.Tell)]


# The table.


def test_every_kind_of_event_has_its_answer() -> None:
    assert set(ANSWERS) == set(typing.get_args(Event)) == {type(event) for event in EVENTS}
    assert {state.phase for state in STATES} == set(PHASES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_has_a_defined_result_in_every_state(event: Event) -> None:
    for state in STATES:
        after, actions = step(state, event)
        assert after.phase in PHASES
        assert all(isinstance(action, typing.get_args(Action)) for action in actions)
        assert after.unkept >= 0
        assert state.phase != "over" or after.phase in ("over", "killed")
        if isinstance(event, on.ElasticStops):
            # Somebody lets it go, or is on the way to.
            moving = {on.LetGo, on.TakeEvidence, on.AwaitRuling} & {type(action) for action in actions}
            assert moving or (after.phase == "holding" and after.unkept)
        if isinstance(event, on.Over) and state.phase != "over":
            assert after.phase in ("over", "closing")
        if after.phase == "killed" != state.phase:
            assert on.EndNow() in actions


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_nothing_is_told_twice_and_nothing_is_stopped_twice_by_the_same_event(event: Event) -> None:
    if isinstance(event, on.ElasticStops | on.ElasticLate | on.Started | on.Signalled | on.Taken):
        return  # these may well come again
    for state in STATES:
        once, _ = step(state, event)
        _, again = step(once, event)
        assert not {on.StopRanks, on.Restart} & set(kinds(list(again)))


# The promises.


@pytest.mark.parametrize(
    ("policy", "certainty", "stopped"),
    [
        ("auto", "proven", True),
        ("auto", "likely", False),
        ("stop", "likely", True),
        ("report", "proven", False),
        ("restart", "likely", True),
    ],
)
def test_hang_is_stopped_or_only_reported(policy: typing.Any, certainty: typing.Any, stopped: bool) -> None:
    state, actions = walk(started(), hang(certainty), policy=Policy(policy))
    assert (on.StopRanks() in actions) == stopped
    assert (state.stopped_for == "hang") == stopped
    assert kinds(actions)[0] is on.Keep, "evidence first"
    (line,) = told(actions)
    if stopped:
        assert isinstance(line, live.Ending), "the report with the headline follows"
    else:
        assert isinstance(line, live.Detected)
        assert line.then == "watch"
    assert line.option == f"--on-hang {policy}"


@pytest.mark.parametrize(("policy", "stopped"), [("auto", True), ("report", False)])
def test_what_torch_itself_will_end_is_not_waited_for(policy: typing.Any, stopped: bool) -> None:
    given_up = looked("hang", "likely", given_up=True)
    _, actions = walk(started(), hang("likely"), given_up, given_up, policy=Policy(policy))
    assert kinds(actions).count(on.StopRanks) == int(stopped)
    assert len(told(actions)) == 1 + int(stopped), "nothing new is told twice"


def test_hang_is_told_once_and_again_when_it_is_proven() -> None:
    _, actions = walk(started(), hang("likely"), hang("likely"), hang("proven"), hang("proven"))
    lines = [line for line in told(actions) if isinstance(line, live.Detected | live.Ending)]
    assert [line.verdict.certainty for line in lines] == ["likely", "proven"]
    assert kinds(actions).count(on.StopRanks) == 1


def test_hang_is_restarted_while_restarts_are_left() -> None:
    policy = Policy("restart")
    _, actions = walk(started(restarts_left=1), hang("proven"), policy=policy)
    assert on.Restart() in actions
    state, actions = walk(
        started(restarts_left=1), hang("proven"), started(1), hang("proven", attempt=1), policy=policy
    )
    assert on.StopRanks() in actions
    assert [attempt for attempt, _ in state.earlier] == [0]
    final = last(started(restarts_left=1), hang("proven"), started(1), on.Over(WELL), policy=policy)
    assert final.verdict.outcome == "ok"
    assert any(isinstance(note, EarlierAttempt) for note in final.notes)


def test_look_at_an_attempt_that_is_over_says_nothing_about_the_next() -> None:
    assert walk(started(), started(1), hang("proven", attempt=0))[1] == []


def test_likely_hang_that_goes_on_and_ends_well_is_ok() -> None:
    run = (started(), hang("likely"), on.Recovered(50.0), on.Over(WELL))
    assert (last(*run).verdict.outcome, code(*run)) == ("ok", 0)
    assert live.GoesOn(50.0) in told(walk(*run)[1])
    unnoticed = (started(), hang("likely"), on.Over(WELL))
    assert (last(*unnoticed).verdict.outcome, code(*unnoticed)) == ("ok", 0)
    assert last(*unnoticed).notes, "what was reported meanwhile is still said"


def test_recovery_of_a_job_that_nobody_called_stuck_is_no_news() -> None:
    assert walk(started(), on.Recovered(3.0))[1] == []


def test_slow_rank_is_noticed_once_and_never_stopped() -> None:
    _, actions = walk(started(), looked("slow"), looked("slow"), policy=Policy("stop"))
    assert [type(line) for line in told(actions)] == [live.Noticed]
    assert kinds(actions) == [on.Tell]


@pytest.mark.parametrize(("outcome", "option"), [("nan", "on_nan"), ("corrupt", "on_corrupt")])
def test_bad_numbers_are_reported_once_or_stop_the_run(outcome: typing.Any, option: str) -> None:
    run = (started(), looked(outcome), looked(outcome))
    _, actions = walk(*run)
    assert kinds(actions) == [on.Keep, on.Tell]
    assert (last(*run, on.Over(WELL)).verdict.outcome, code(*run, on.Over(WELL))) == (outcome, 0)
    policy = replace(Policy(), **{option: "stop"})
    _, actions = walk(*run, policy=policy)
    assert kinds(actions) == [on.Keep, on.Tell, on.StopRanks]
    (line,) = told(actions)
    assert isinstance(line, live.Ending)
    assert line.option == f"--on-{outcome} stop"
    stopped = (*run, on.ElasticStops(ALIVE), on.RanksStopped(), on.Over(STOPPED))
    assert code(*stopped, policy=policy) == 76
    assert code(*run, on.ElasticStops(ALIVE), on.Over(ends(0, 0, by_launcher=True)), policy=policy) == 76
    assert code(*run, on.Over(WELL), policy=policy) == 0, "it had come to its own end before"


def test_numbers_that_went_bad_unseen_are_looked_at_at_the_end() -> None:
    run = (started(), on.ElasticStops(WELL), on.RanksStopped(), on.Over(WELL, suspected=True))
    assert walk(*run)[1][-1] == on.TakeEvidence("end")
    assert (last(*run, taken("nan", "end")).verdict.outcome, code(*run, taken("nan", "end"))) == ("nan", 0)
    assert last(*run, taken("ok", "end")).verdict.outcome == "ok"
    assert last(*run, on.LookBroke("oops")).verdict.outcome == "ok"


def test_failure_is_looked_at_before_the_other_ranks_are_stopped() -> None:
    run = (started(), on.ElasticStops(FAILED))
    _, actions = walk(*run)
    assert actions == [on.Settle(), on.TakeEvidence("failure")]
    _, actions = walk(*run, taken("crash"))
    assert kinds(actions)[2:] == [on.Keep, on.LetGo, on.Tell]
    over = on.Over((*ends(-15, by_launcher=True), on.End(1, 3)))
    assert (code(*run, taken("crash"), on.RanksStopped(), over), last(*run, taken("crash"), over).verdict.outcome) == (
        3,
        "crash",
    )


def test_look_that_fails_keeps_nobody_from_being_stopped_and_is_noted() -> None:
    run = (started(), on.ElasticStops(FAILED), on.LookBroke("MemoryError: "))
    assert isinstance(walk(*run)[1][-1], on.LetGo)
    final = last(*run, on.Over(FAILED))
    assert (final.verdict.outcome, final.verdict.cause, code(*run, on.Over(FAILED))) == ("crash", "exit-code", 3)
    assert final.notes
    nothing = (started(), on.ElasticStops(ALIVE), on.LookBroke("MemoryError: "), on.Over(STOPPED))
    assert (last(*nothing).verdict.outcome, code(*nothing)) == ("unknown", 1)


def test_torchs_agent_waits_until_the_watchers_evidence_is_kept() -> None:
    state, actions = step(step(State(Policy()), started())[0], hang("proven"))
    assert isinstance(actions[0], on.Keep)
    state, actions = step(state, on.ElasticStops(ALIVE))
    assert (state.phase, actions) == ("holding", ())
    state, actions = step(state, on.Kept())
    assert (state.phase, actions) == ("stopping", (on.LetGo(hurry=True),))


# Signals.


def signalled(number: int, at: float = 100.0, how: tuple[on.End, ...] = ALIVE) -> on.Signalled:
    return on.Signalled(number, at, how)


@pytest.mark.parametrize("number", [2, 15])
@pytest.mark.parametrize("final", [WELL, STOPPED, ends(0, 0, by_launcher=True), ends(3, 3), ends(None, None)])
def test_run_stopped_by_a_signal_never_exits_with_0(number: int, final: tuple[on.End, ...]) -> None:
    looks: list[tuple[Event, ...]] = [
        (on.ElasticStops(ALIVE), taken("ok", "interrupt")),
        (on.ElasticStops(ALIVE), on.LookBroke("oops")),
        (on.ElasticStops(final),),
        (),
    ]
    for look in looks:
        run = (started(), signalled(number), *look, on.Over(final))
        assert (code(*run), last(*run).verdict.outcome) == (128 + number, "interrupted")
    reported = (started(), hang("likely"), signalled(number), on.ElasticStops(ALIVE), on.Over(STOPPED))
    assert code(*reported) == 128 + number, "it was stuck, and somebody had enough of it"


def test_first_signal_takes_a_last_look_and_says_what_it_saw() -> None:
    run = (started(), signalled(15), on.ElasticStops(ALIVE), taken("hang", "interrupt"))
    _, actions = walk(*run)
    assert kinds(actions) == [on.Tell, on.Interrupt, on.TakeEvidence, on.Keep, on.LetGo]
    final = last(*run, on.Over(STOPPED)).verdict
    assert final.headline.startswith("the job was stopped by SIGTERM. At that moment rank 1")
    assert (final.cause, final.culprits, [each.cause for each in final.alternatives]) == (None, (), ["stalled"])


def test_second_signal_ends_it_at_once_and_an_echo_of_the_first_is_none() -> None:
    run = (started(), signalled(2))
    assert walk(*run, signalled(2, 100.0 + SAME_SIGNAL_S / 2))[1] == walk(*run)[1]
    for between in ((), (on.ElasticStops(ALIVE),), (on.ElasticStops(ALIVE), taken("ok", "interrupt"))):
        state, actions = walk(*run, *between, signalled(2, 101.0))
        assert (state.phase, actions[-1]) == ("killed", on.EndNow())
        assert code(*run, *between, signalled(2, 101.0), on.Over(STOPPED)) == 130
        assert on.Show() not in walk(*run, *between, signalled(2, 101.0), on.Over(STOPPED))[1]


def test_signal_after_all_ranks_had_ended_well_did_not_stop_the_run() -> None:
    assert code(started(), signalled(15, how=WELL), on.ElasticStops(WELL), on.Over(WELL)) == 0


def test_signal_during_the_look_at_a_failure_waits_for_it_and_the_failure_is_the_verdict() -> None:
    run = (started(restarts_left=3), on.ElasticStops(FAILED), signalled(2, how=FAILED))
    _, actions = walk(*run)
    assert on.Interrupt(2) not in actions, "what is being taken is not thrown away"
    _, actions = walk(*run, taken("crash"), on.RanksStopped())
    assert actions[-1] == on.Interrupt(2), "and the job is not restarted"
    over = on.Over((*ends(-15, by_launcher=True), on.End(1, 3)))
    assert (code(*run, taken("crash"), over), last(*run, taken("crash"), over).verdict.outcome) == (3, "crash")


def test_ranks_that_a_schedulers_signal_killed_directly_did_not_fail_by_themselves() -> None:
    run = (started(), signalled(15, how=ends(-15, None)), on.ElasticStops(ends(-15, None)))
    assert walk(*run)[1][-1] == on.TakeEvidence("interrupt")


def test_stop_by_torchs_agent_without_failure_or_signal_is_said_so() -> None:
    run = (started(), on.ElasticStops(ALIVE), taken("ok", "interrupt"), on.Over(STOPPED))
    final = last(*run).verdict
    assert (final.outcome, final.headline) == ("interrupted", "torch's elastic agent stopped the ranks.")
    assert code(*run) == 1


# Other nodes.


def test_other_nodes_get_the_verdict_and_what_follows_from_it() -> None:
    _, actions = walk(started(several=True), hang("proven"))
    assert kinds(actions) == [on.Keep, on.TellNodes, on.Tell, on.StopRanks, on.SeeToTheEnd]
    (word,) = [action for action in actions if isinstance(action, on.TellNodes)]
    assert (word.stop, word.reason, word.verdict.evidence) == (True, "hang", "evidence/attempt_0")


def test_ruling_is_obeyed() -> None:
    _, actions = walk(started(several=True), ruled("hang", "hang"))
    assert kinds(actions) == [on.Write, on.Tell, on.StopRanks, on.SeeToTheEnd]
    _, actions = walk(started(several=True), ruled("hang", "hang", stop=False))
    assert kinds(actions) == [on.Write, on.Tell]
    _, actions = walk(started(several=True, restarts_left=1), ruled("crash", "failure"))
    assert kinds(actions) == [on.Write, on.Tell], "torch's agents restart a failed job by themselves"
    run = (started(several=True), ruled("interrupted", "signal", signal=15), on.ElasticStops(ALIVE), on.Over(STOPPED))
    assert code(*run) == 143


def test_node_that_asked_for_a_look_waits_for_the_ruling_and_looks_alone_without_one() -> None:
    run = (started(several=True), on.ElasticStops(FAILED), on.SpeakerAsked())
    assert walk(*run)[1][-1] == on.AwaitRuling()
    assert isinstance(walk(*run, ruled("crash", "failure"))[1][-1], on.LetGo)
    alone = on.TakeEvidence("failure", alone=True)
    assert walk(*run, on.NoRuling())[1][-1] == alone
    assert walk(*run, ruled("ok", "failure"))[1][-1] == alone, "a rank failed here, whatever the speaker saw"


def test_first_look_at_a_failure_counts() -> None:
    first = looked("crash", elsewhere=True)
    run = (started(several=True), on.ElasticStops(FAILED), first, taken("slow"))
    state, actions = walk(*run)
    assert kinds(actions).count(on.Keep) == 1
    assert isinstance(actions[-1], on.LetGo)
    assert state.found is not None
    assert state.found.outcome == "crash"


def test_a_node_whose_ranks_have_ended_well_still_speaks_for_the_others() -> None:
    """Torch's agent waits for the other nodes by then: it has closed here, and is asked to wait no more."""
    run = (started(several=True), on.ElasticStops(WELL))
    state, actions = walk(*run)
    assert (state.phase, actions) == ("running", [on.LetGo(False)])
    assert (last(*run, on.Over(WELL)).verdict.outcome, code(*run, on.Over(WELL))) == ("ok", 0)
    lost = (*run, looked("crash"), on.ElasticStops(WELL))
    assert kinds(walk(*lost)[1][1:]) == [on.Keep, on.TellNodes, on.Tell, on.StopRanks, on.SeeToTheEnd, on.LetGo]
    assert (last(*lost, on.Over(WELL)).verdict.outcome, code(*lost, on.Over(WELL))) == ("crash", 75)


def test_a_node_that_was_stopped_by_a_signal_ends_the_job_on_all() -> None:
    stopped = on.StoppedElsewhere("other", 2)
    run = (started(several=True), stopped, on.ElasticStops(FAILED), taken("hang", "interrupt"))
    _, actions = walk(*run)
    assert kinds(actions)[:4] == [on.Tell, on.StopRanks, on.SeeToTheEnd, on.TakeEvidence]
    (word,) = [action for action in actions if isinstance(action, on.TellNodes)]
    assert (word.verdict.outcome, word.stop, word.reason, word.signal) == ("interrupted", True, "signal", 2)
    assert on.LetGo(False) in actions
    assert (last(*run, on.Over(STOPPED)).verdict.outcome, code(*run, on.Over(STOPPED))) == ("interrupted", 130)
    waiting = (started(several=True), on.ElasticStops(WELL), stopped, on.ElasticStops(WELL), on.Over(WELL))
    assert (last(*waiting).verdict.outcome, code(*waiting)) == ("interrupted", 130)
    assert walk(started(several=True, restarts_left=1), stopped)[1] == [], "torch's agents may start again"


def fallen(at: float, outcome: Outcome = "crash") -> on.Taken:
    """A look at a rank of this node that has failed by itself."""
    seen = evidence("failure")
    first = replace(seen.ranks[0], exit=Exit(1, at, by_launcher=False))
    return on.Taken(ruling(outcome), replace(seen, ranks=(first, *seen.ranks[1:])), False)


def test_a_rank_that_fails_with_those_of_a_node_that_was_stopped_is_not_to_blame() -> None:
    """Found by chaos: the word of the signal came while the look at the failure was being taken."""
    look = (started(several=True), on.ElasticStops(FAILED))
    stopped = on.StoppedElsewhere("other", 2, 5.0)
    after = (*look, stopped, fallen(at=5.2))
    _, actions = walk(*after)
    (word,) = [action for action in actions if isinstance(action, on.TellNodes)]
    assert (word.verdict.outcome, word.reason, word.signal) == ("interrupted", "signal", 2)
    assert (last(*after, on.Over(FAILED)).verdict.outcome, code(*after, on.Over(FAILED))) == ("interrupted", 130)
    before = (*look, stopped, fallen(at=4.8))
    assert (last(*before, on.Over(FAILED)).verdict.outcome, code(*before, on.Over(FAILED))) == ("crash", 3)


def test_a_failure_elsewhere_that_follows_a_signal_is_no_news() -> None:
    look = fallen(at=5.2)
    failed = on.Looked(look.ruling, look.evidence, elsewhere=True)
    run = (started(several=True), on.StoppedElsewhere("third", 2, 5.0))
    assert walk(*run, failed) == walk(*run)
    first = replace(look.evidence, ranks=fallen(at=4.0).evidence.ranks)
    assert last(*run, replace(failed, evidence=first), on.Over(STOPPED)).verdict.outcome == "crash"


def test_a_signal_to_a_node_is_told_to_the_others_before_its_ranks_are_stopped() -> None:
    actions = walk(started(several=True), on.Signalled(2, 100.0, ALIVE))[1]
    assert kinds(actions) == [on.TellSignal, on.Tell, on.Interrupt]


def test_a_signal_after_the_work_of_torchs_agent_changes_nothing() -> None:
    """Found by chaos: it was raised where nobody took it, on a job of two nodes that had ended well."""
    run = (started(several=True), on.ElasticStops(WELL), on.ElasticEnded(), on.Signalled(2, 100.0, WELL))
    assert kinds(walk(*run)[1]) == [on.LetGo]
    assert (last(*run, on.Over(WELL)).verdict.outcome, code(*run, on.Over(WELL))) == ("ok", 0)
    late = (*run, on.Over(WELL), on.Signalled(2, 200.0, WELL))
    assert walk(*late)[1][-1] == on.ExitNow(0)


def test_ranks_of_this_node_that_ended_well_do_not_hide_a_failure_elsewhere() -> None:
    crash = replace(verdict("crash", rank=5), exit_codes={5: 9})
    failed = on.Ruled(crash, True, "failure", None, "other")
    run = (started(several=True), failed, on.ElasticStops(WELL), on.Over(WELL))
    assert (last(*run).verdict.outcome, code(*run)) == ("crash", 9)


def test_torchs_agent_that_does_not_come_to_an_end_is_not_waited_for() -> None:
    run = (started(several=True), hang("proven"))
    assert walk(*run, on.ElasticLate(living=True))[1][-1] == on.EndNow()
    _, actions = walk(*run, on.ElasticLate(living=True), on.Over(STOPPED))
    assert kinds(actions)[-4:] == [on.Conclude, on.Show, on.SayGoodbye, on.ExitNow]
    assert actions[-1] == on.ExitNow(75)
    stopping = (*run, on.ElasticStops(ALIVE))
    assert isinstance(walk(*stopping, on.ElasticLate(living=True))[1][-1], on.SeeToTheEnd), "ranks may take their time"
    late = on.ElasticLate(living=False)
    assert walk(*stopping, late, late)[1][-1] == on.EndNow()


def test_launch_that_failed_is_its_own_verdict() -> None:
    run = (on.Over((), failure=LauncherRaised("DistNetworkError", "EADDRINUSE, address already in use")),)
    final = last(*run).verdict
    assert (final.outcome, final.cause, code(*run)) == ("crash", "port-in-use", 1)
    assert [(culprit.process, culprit.doing) for culprit in final.culprits] == [("launcher", "starting the ranks")]


def test_what_will_fail_again_is_not_restarted_unless_that_is_asked_for() -> None:
    lasting = on.Taken(ruling("crash", cause="collective-skipped"), evidence("failure"), True)
    events = (started(restarts_left=2), on.ElasticStops(FAILED), lasting)
    state, actions = walk(*events)
    assert on.NoRestart() in actions
    assert state.restarts_left == 0
    for policy in (Policy(restart_always=True), Policy("report", restart_always=True)):
        state, actions = walk(*events, policy=policy)
        assert on.NoRestart() not in actions
        assert state.restarts_left == 2
    _, actions = walk(started(restarts_left=2, several=True), *events[1:])
    assert on.NoRestart() not in actions, "all nodes restart, or none"
