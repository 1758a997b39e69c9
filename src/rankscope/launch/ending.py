"""The end of a run, decided in one place: `step(state, event)` gives the next state and what is to be done.

Pure: nothing here touches a process, a file or a clock. In words:

- Nothing is stopped before its evidence is kept, here or on the node that speaks for all. Only a second signal does not
  wait for it, and a look that failed is not tried again.
- Torch's agent stops the ranks; it is asked to (`StopRanks`, `Restart`), and held back (`ElasticStops`) until it may
  (`LetGo`).
- The first look at a failure counts: by the second, others may have ended because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rankscope.diagnosis.facts.run import (
    CameBack,
    EvidenceElsewhere,
    LookFailed,
    NobodyNamed,
    Overheard,
    SaidMeanwhile,
    SignalCameTo,
)
from rankscope.diagnosis.finding import Ruling
from rankscope.diagnosis.retry import fails_alike, will_fail_again
from rankscope.diagnosis.verdict import Certainty, Verdict
from rankscope.evidence.model import Evidence
from rankscope.launch import events as on
from rankscope.launch.events import Action, Event, Reason
from rankscope.launch.exit_code import exit_code
from rankscope.launch.last_verdicts import interruption, last_verdict, never_started, notes_on
from rankscope.launch.run_state import OnBadNumbers, State, all_well, came_to_its_end
from rankscope.report import live
from rankscope.report.conclude import annotated, pronounce

ELASTIC_S = 8.0
"""How long torch's agent is given to begin stopping the ranks, on a job of several nodes."""
AGAIN_S = 1.0
SAME_SIGNAL_S = 0.25
"""`timeout` and schedulers send a signal to the process and to its group: that is one request, not two."""
NOTICE_S = 10.0
OVERHEARD_LENGTH = 200
_STRENGTH: dict[Certainty | None, int] = {None: 0, "possible": 0, "likely": 1, "proven": 2}

Step = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """What follows from an event."""
    return ANSWERS[type(event)](state, event)


def _started(state: State, event: on.Started) -> Step:
    if state.phase in ("killed", "over"):
        return state, ()
    past = state.found or state.numbers
    return (
        State(
            policy=state.policy,
            attempt=event.attempt,
            world_size=event.world_size,
            restarts_left=event.restarts_left,
            several_nodes=event.several_nodes,
            signal=state.signal,
            signal_at=state.signal_at,
            cut_by=state.cut_by,
            cut_at=state.cut_at,
            earlier=state.earlier if past is None else (*state.earlier, (state.attempt, past)),
            notes=state.notes,
            unkept=state.unkept,
        ),
        (),
    )


# What the watcher sees.


def _looked(state: State, event: on.Looked) -> Step:
    if event.evidence.attempt != state.attempt:
        return state, ()
    ruling, evidence = event.ruling, event.evidence
    if event.elsewhere:
        return _failed_elsewhere(state, pronounce(ruling, state.policy.lang), evidence)
    if state.phase != "running":
        return state, ()
    if ruling.outcome in ("nan", "corrupt"):
        return _bad_numbers_seen(state, pronounce(ruling, state.policy.lang), evidence)
    if evidence.trigger == "non-finite":
        return state, ()  # a look at numbers says nothing about stillness
    if _is_hang(ruling):
        news = _STRENGTH[ruling.certainty] > _STRENGTH[state.reported]
        # What rests on others' words alone may be said again, once the ranks of this node have been still themselves.
        due = state.reported is not None and not state.stopped_for and _rests_on_hearsay(evidence)
        again = due and event.still_s >= NOTICE_S > state.reported_still_s
        settled = event.given_up and state.policy.on_hang == "auto"
        if not (news or again or settled):
            return state, ()
        return _hang(state, pronounce(ruling, state.policy.lang), evidence, event.still_s, settled=settled)
    if ruling.outcome in ("slow", "hang") and ruling.culprits and event.still_s >= min(NOTICE_S, event.patience_s):
        return _notice(state, pronounce(ruling, state.policy.lang))
    if ruling.outcome == "unknown" and event.still_s >= event.patience_s:
        return _notice(state, pronounce(ruling, state.policy.lang))
    return state, ()


def _is_hang(ruling: Ruling) -> bool:
    """The job will not go on. A crash of which the watcher knows first is a rank that has ended, or hides an exception
    behind a wait, while its peers wait on."""
    if ruling.outcome == "crash":
        return ruling.certainty == "proven"
    return ruling.outcome == "hang" and ruling.certainty in ("proven", "likely")


def _hang(state: State, verdict: Verdict, evidence: Evidence, still_s: float, *, settled: bool) -> Step:
    """`settled`: torch itself will end the job; nothing is won by waiting for that."""
    wish = state.policy.on_hang
    stop = wish in ("stop", "restart") or (wish == "auto" and verdict.certainty == "proven")
    stop = settled or (stop and (still_s >= NOTICE_S or not _rests_on_hearsay(evidence)))
    restart = wish == "restart" and state.restarts_left > 0
    again = restart and not state.several_nodes and fails_alike(verdict, [past for _, past in state.earlier])
    restart = restart and (state.policy.restart_always or not again)
    state, keep = _find(state, verdict, evidence, "hang")
    state = replace(state, reported=verdict.certainty, reported_still_s=still_s)
    option = f"--on-hang {wish}"
    line: live.Line = live.Detected(keep.verdict, "restart" if restart and stop else "watch", option)
    if stop and not restart:
        line = live.Ending(keep.verdict, "the job", option)
    tell = on.Tell(line)
    state, ask = _ask(state, "hang", restart=restart) if stop else (state, ())
    return state, (keep, *_tell_nodes(state, keep.verdict, stop, "hang"), tell, *ask)


def _rests_on_hearsay(evidence: Evidence) -> bool:
    """Evidence of other nodes came without the job's seal: it may inform, and stops no rank that goes on."""
    return any(not node.verified for node in evidence.nodes)


def _notice(state: State, verdict: Verdict) -> Step:
    """Something slow or still that may well be meant."""
    key = f"{verdict.cause} {[culprit.rank for culprit in verdict.culprits]}"
    if key in state.told:
        return state, ()
    state = replace(state, told=state.told | {key}, notes=(*state.notes, SaidMeanwhile(verdict.headline)))
    return state, (on.Tell(live.Noticed(verdict)),)


def _watch_broke(state: State, event: on.WatchBroke) -> Step:
    return replace(state, notes=(*state.notes, LookFailed(event.error))), ()


def _noted(state: State, event: on.Noted) -> Step:
    return replace(state, notes=(*state.notes, event.fact)), ()


def _stragglers_seen(state: State, event: on.StragglersSeen) -> Step:
    return state, (on.Tell(live.Slowed(event.said)),) if state.phase == "running" else ()


def _recovered(state: State, event: on.Recovered) -> Step:
    if state.phase != "running" or state.reported is None:
        return state, ()
    state = replace(state, reported=None, notes=(*state.notes, CameBack(event.after_s)))
    if state.found_for == "hang":
        state = replace(state, found=None, found_for=None)
    return state, (on.Tell(live.GoesOn(event.after_s)),)


def _bad_numbers_seen(state: State, verdict: Verdict, evidence: Evidence) -> Step:
    """On several nodes a reduction gave the value to all of them: only the evidence of all tells where it began."""
    if len(evidence.ranks) < evidence.world_size:
        return replace(state, notes=(*state.notes, NobodyNamed())), ()
    wish = state.policy.on_nan if verdict.outcome == "nan" else state.policy.on_corrupt
    if _kind(verdict) in state.told:
        return state, ()
    verdict = replace(verdict, evidence=f"{_folder(state)}_numbers")
    state, tell = _bad_numbers(state, verdict, wish, stop=wish == "stop")
    state = replace(state, unkept=state.unkept + 1)
    told = _tell_nodes(state, verdict, wish == "stop", "numbers")
    return state, (on.Keep(verdict, evidence), *told, *tell)


def _bad_numbers(state: State, verdict: Verdict, wish: OnBadNumbers | None, *, stop: bool) -> Step:
    """The job goes on, unless it was asked to stop."""
    state = replace(state, told=state.told | {_kind(verdict)}, numbers=state.numbers or verdict)
    option = f"--on-{verdict.outcome} {wish}" if wish is not None else ""
    if not stop:
        return state, (on.Tell(live.Detected(verdict, "go-on", option)),)
    tell = on.Tell(live.Ending(verdict, "the job", option))
    state, ask = _ask(replace(state, found=verdict, found_for="numbers"), "numbers")
    return state, (tell, *ask)


def _kind(verdict: Verdict) -> str:
    """One of each is told: what a value that is not finite brings with it is no news."""
    return "nan" if verdict.outcome == "nan" else f"{verdict.outcome} {verdict.cause}"


def _failed_elsewhere(state: State, verdict: Verdict, evidence: Evidence) -> Step:
    """A rank of another node has failed, and this node speaks for all."""
    if state.found_for == "failure" or state.phase not in ("running", "asked", "looking"):
        return state, ()
    if _follows_the_signal(state, evidence):
        return state, ()  # the last look and the ruling come when torch's agent stops the ranks
    state, keep = _find(state, verdict, evidence, "failure")
    stop = not _rests_on_hearsay(evidence)  # where it is true, the ranks here fail with it or stand still
    told = _tell_nodes(state, keep.verdict, stop, "failure")
    state, obeyed = _obey(state, keep.verdict, "failure", stop=stop)
    return state, (keep, *told, *obeyed)


# What other nodes say.


def _ruled(state: State, event: on.Ruled) -> Step:
    if state.phase in ("closing", "killed", "over"):
        return state, ()
    if not event.verified:
        return _overheard(state, event)
    if event.verdict.outcome == "ok":
        # The speaker saw nothing; what ails a rank here is looked at here.
        return _look_alone(state) if state.phase == "awaiting" else (state, ())
    verdict = annotated(event.verdict, [EvidenceElsewhere(event.speaker)])
    if event.reason == "numbers":
        if _kind(verdict) in state.told:
            return state, ()
        state, actions = _bad_numbers(state, verdict, None, stop=event.stop)
        return state, (on.Write(verdict), *actions)
    state = replace(state, found=verdict, found_for=event.reason)
    if event.reason == "hang":
        state = replace(state, reported=verdict.certainty)
    if event.reason == "signal" and event.signal is not None:
        state = replace(state, cut_by=event.signal)
    waited = state.phase == "awaiting"
    state, actions = _obey(state, verdict, event.reason, stop=event.stop)
    if waited:
        state, release = _release(state)
        actions = (*actions, *release)
    return state, (on.Write(verdict), *actions)


def _overheard(state: State, event: on.Ruled) -> Step:
    """Who said that is not known: it is told as what it is, orders nothing, and what ails a rank here is looked at
    here."""
    state, actions = _look_alone(state) if state.phase == "awaiting" else (state, ())
    said = Overheard(event.speaker, event.verdict.headline[:OVERHEARD_LENGTH])
    key = f"overheard {said}"
    if event.verdict.outcome == "ok" or key in state.told:
        return state, actions
    state = replace(state, told=state.told | {key}, notes=(*state.notes, said))
    return state, (on.Tell(live.Said(said)), *actions)


def _obey(state: State, verdict: Verdict, reason: Reason, *, stop: bool) -> Step:
    """All nodes do the same. A job that failed is restarted by torch's agents by themselves, on all nodes."""
    restart = state.restarts_left > 0 and (reason != "hang" or state.policy.on_hang == "restart")
    if stop and not restart:
        line: live.Line = live.Ending(verdict, "the job")
    else:
        line = live.Detected(verdict, "restart" if restart else "watch")
    if not stop:
        return state, (on.Tell(line),)
    if restart and reason != "hang":
        return replace(state, stopped_for=reason), (on.Tell(line),)
    state, ask = _ask(state, reason, restart=restart)
    return state, (on.Tell(line), *ask)


def _speaker_asked(state: State, _event: on.SpeakerAsked) -> Step:
    return (replace(state, phase="awaiting"), (on.AwaitRuling(),)) if state.phase == "looking" else (state, ())


def _no_ruling(state: State, _event: on.NoRuling) -> Step:
    return _look_alone(state) if state.phase == "awaiting" else (state, ())


def _look_alone(state: State) -> Step:
    return replace(state, phase="looking"), (on.TakeEvidence("failure", alone=True),)


def _stopped_elsewhere(state: State, event: on.StoppedElsewhere) -> Step:
    """A job of a fixed size is stopped as a whole. Where torch may start again, its agents see to it."""
    if state.phase not in ("running", "looking") or state.restarts_left > 0 or state.cut_by is not None:
        return state, ()
    notes = (*state.notes, SignalCameTo(event.host))
    running = state.phase == "running"
    state = replace(state, cut_by=event.signal, cut_at=event.at, notes=notes)
    if not running:
        return state, ()  # ranks here may have failed with those that it stopped: what is being taken tells
    state, ask = _ask(state, "signal")
    return state, (on.Tell(live.LastLook(event.signal)), *ask)


def _follows_the_signal(state: State, evidence: Evidence) -> bool:
    """Whatever failed did so after a signal had come to another node, which stops its ranks."""
    if state.cut_at is None:
        return False
    exits = [rank.exit for rank in evidence.ranks if rank.exit is not None]
    failed_at = [end.at for end in exits if end.code and not end.by_launcher]
    return bool(failed_at) and min(failed_at) >= state.cut_at


# Signals.


def _signalled(state: State, event: on.Signalled) -> Step:
    """The first stops the job in order, the second at once."""
    if state.signal is not None and event.at - state.signal_at < SAME_SIGNAL_S:
        return state, ()
    if state.phase == "killed":
        return state, (on.ExitNow(128 + event.number),)
    if state.phase == "over":
        # The last word is said; who is impatient ends what is left of us.
        last = (on.ExitNow(state.code),) if state.signal is not None else ()
        return replace(state, signal=event.number, signal_at=event.at), last
    if state.signal is not None:
        rushed = replace(state, phase="killed", rushed=event.number)
        return rushed, (on.Tell(live.StoppedAtOnce()), on.EndNow())
    state = replace(state, signal=event.number, signal_at=event.at)
    if state.phase == "closing" or state.elastic_ended:
        return state, ()
    tell: tuple[Action, ...] = ()
    # Where all have ended well the work is done, and nothing is left to be stopped. Of a job on several machines nobody
    # knows here how the others end.
    if state.several_nodes or not all_well(event.ends):
        failed_first = any(end.failed and end.code != -event.number for end in event.ends)
        state = replace(state, cut_by=event.number, failed_first=failed_first)
        tell = (on.Tell(live.LastLook(event.number)),)
        if state.several_nodes:
            tell = (on.TellSignal(event.number), *tell)
    if state.phase in ("looking", "awaiting", "holding"):
        return replace(state, interrupt_due=True), tell  # what is being taken and kept is not thrown away
    return state, (*tell, on.Interrupt(event.number))


def _cut_short(state: State, event: on.CutShort) -> Step:
    """The signal came where torch had its own handlers in place, and has stopped the ranks already."""
    if state.phase == "over" or state.signal is not None:
        return state, ()
    state = replace(state, signal=event.number, cut_by=event.number)
    if state.found is not None and state.found.outcome == "interrupted":
        state = replace(state, found=None, found_for=None)  # by whom was not known then
    return state, ()


# Torch's agent.


def _elastic_ended(state: State, _event: on.ElasticEnded) -> Step:
    return replace(state, elastic_ended=True), ()


def _elastic_stops(state: State, event: on.ElasticStops) -> Step:
    if state.phase in ("stopping", "closing", "killed", "over"):
        return state, (on.LetGo(_stuck(state)),)
    if state.phase == "awaiting":
        return state, (on.AwaitRuling(),)
    if state.several_nodes and state.phase == "running" and all_well(event.ends):
        return state, (on.LetGo(hurry=False),)  # nothing is left to stop here; the job goes on elsewhere
    if state.found is not None or not event.ends or all_well(event.ends):
        return _release(state)
    state = replace(state, phase="looking")
    if any(end.failed for end in event.ends) and (state.failed_first or state.cut_by is None):
        return state, (on.Settle(), on.TakeEvidence("failure"))
    return state, (on.TakeEvidence("interrupt"),)


def _taken(state: State, event: on.Taken) -> Step:
    if state.phase == "closing":
        return _judged_at_the_end(state, event)
    if state.phase != "looking":
        return state, ()
    if state.found is not None:
        return _release(state)  # somebody else was first
    interrupted = event.evidence.trigger == "interrupt" or _follows_the_signal(state, event.evidence)
    reason: Reason = "signal" if interrupted else "failure"
    verdict = pronounce(interruption(event.ruling, _cutting(state)) if interrupted else event.ruling, state.policy.lang)
    state, keep = _find(replace(state, phase="holding"), verdict, event.evidence, reason)
    tell: tuple[Action, ...] = ()
    if verdict.outcome in ("ok", "interrupted"):
        pass
    elif state.restarts_left > 0 and _is_final(state, verdict):
        told = on.Tell(live.Detected(keep.verdict, "give-up", "--restart-always restarts it all the same"))
        state, tell = replace(state, restarts_left=0), (on.NoRestart(), told)
    elif state.restarts_left > 0:
        tell = (on.Tell(live.Detected(keep.verdict, "restart")),)
    elif event.living:
        tell = (on.Tell(live.Ending(keep.verdict, "the other ranks")),)
    return state, (keep, *_tell_nodes(state, keep.verdict, True, reason), *tell)


def _is_final(state: State, verdict: Verdict) -> bool:
    """Another attempt would end in the same way. On several nodes all of torch's agents restart, or none: they do."""
    if state.policy.restart_always or state.several_nodes:
        return False
    return will_fail_again(verdict, [past for _, past in state.earlier])


def _look_broke(state: State, event: on.LookBroke) -> Step:
    state = replace(state, notes=(*state.notes, LookFailed(event.error)))
    if state.phase == "looking":
        return _release(state)
    return _final(state) if state.phase == "closing" else (state, ())


def _kept(state: State, _event: on.Kept) -> Step:
    state = replace(state, unkept=max(0, state.unkept - 1))
    return _release(state) if state.phase == "holding" else (state, ())


def _release(state: State) -> Step:
    """Torch's agent may go on, as soon as everything is on disk."""
    if state.unkept:
        return replace(state, phase="holding"), ()
    return replace(state, phase="stopping"), (on.LetGo(_stuck(state)),)


def _ranks_stopped(state: State, _event: on.RanksStopped) -> Step:
    if not state.interrupt_due or state.signal is None:
        return state, ()
    return replace(state, interrupt_due=False), (on.Interrupt(state.signal),)


def _elastic_late(state: State, event: on.ElasticLate) -> Step:
    if state.phase in ("looking", "awaiting", "holding") or (state.phase in ("asked", "stopping") and state.unkept):
        return state, (on.SeeToTheEnd(AGAIN_S),)
    if state.phase == "stopping" and event.living:
        return state, (on.SeeToTheEnd(AGAIN_S),)
    if state.phase == "stopping" and not state.last_call:
        return replace(state, last_call=True), (on.SeeToTheEnd(ELASTIC_S / 2),)
    if state.phase in ("asked", "stopping"):
        return replace(state, phase="killed"), (on.EndNow(),)
    return state, ()


# The end.


def _over(state: State, event: on.Over) -> Step:
    if state.phase == "over":
        return state, ()
    state = replace(state, ends=event.ends)
    if event.failure is not None and not event.ends:
        state = replace(state, found=pronounce(never_started(event.failure), state.policy.lang), found_for="failure")
    elif event.failure is not None:
        state = replace(state, notes=(*state.notes, event.failure))
    if event.suspected and state.phase != "killed" and state.numbers is None and came_to_its_end(state):
        return replace(state, phase="closing"), (on.TakeEvidence("end"),)
    return _final(state)


def _judged_at_the_end(state: State, event: on.Taken) -> Step:
    """A job may have ended before the watcher looked."""
    if event.ruling.outcome not in ("nan", "corrupt"):
        return _final(state)
    if len(event.evidence.ranks) < event.evidence.world_size:
        return _final(replace(state, notes=(*state.notes, NobodyNamed())))
    verdict = replace(pronounce(event.ruling, state.policy.lang), evidence=f"{_folder(state)}_numbers")
    state, last = _final(replace(state, numbers=verdict, unkept=state.unkept + 1))
    return state, (on.Keep(verdict, event.evidence), *last)


def _final(state: State) -> Step:
    verdict = last_verdict(state)
    conclude = on.Conclude(verdict, notes_on(state, verdict))
    well = came_to_its_end(state)
    code = exit_code(
        verdict,
        state.ends,
        stopped_for=None if well else state.stopped_for,
        signal=state.cut_by,
        several_nodes=state.several_nodes,
    )
    if state.rushed is not None and not well:
        code = 128 + state.rushed
    over = replace(state, phase="over", code=code)
    if state.rushed is not None:
        return over, (conclude, on.ExitNow(code))
    if state.phase == "killed":
        return over, (conclude, on.Show(), on.SayGoodbye(), on.ExitNow(code))
    return over, (conclude, on.Show(), on.Exit(code))


# Shared.


def _find(state: State, verdict: Verdict, evidence: Evidence, reason: Reason) -> tuple[State, on.Keep]:
    verdict = replace(verdict, evidence=_folder(state))
    return replace(state, found=verdict, found_for=reason, unkept=state.unkept + 1), on.Keep(verdict, evidence)


def _ask(state: State, reason: Reason, *, restart: bool = False) -> Step:
    """Torch's agent is to stop the ranks, unless it is already about to."""
    ask: list[Action] = []
    if state.phase == "running":
        ask.append(on.Restart() if restart else on.StopRanks())
        state = replace(state, phase="asked")
    if state.several_nodes and not restart and not state.seen_to:
        ask.append(on.SeeToTheEnd(ELASTIC_S))
        state = replace(state, seen_to=True)
    return replace(state, stopped_for=reason), tuple(ask)


def _tell_nodes(state: State, verdict: Verdict, stop: bool, reason: Reason) -> tuple[Action, ...]:
    number = _cutting(state) if reason == "signal" else None
    return (on.TellNodes(verdict, stop, reason, number),) if state.several_nodes else ()


def _folder(state: State) -> str:
    return f"evidence/attempt_{state.attempt}"


def _cutting(state: State) -> int | None:
    """The signal that ends the run, here or elsewhere."""
    return state.cut_by if state.signal is None else state.signal


def _stuck(state: State) -> bool:
    return state.stopped_for in ("hang", "numbers")


ANSWERS: dict[type[Event], Callable[[State, Any], Step]] = {
    on.Started: _started,
    on.Looked: _looked,
    on.WatchBroke: _watch_broke,
    on.Recovered: _recovered,
    on.StragglersSeen: _stragglers_seen,
    on.Noted: _noted,
    on.Ruled: _ruled,
    on.StoppedElsewhere: _stopped_elsewhere,
    on.Signalled: _signalled,
    on.CutShort: _cut_short,
    on.ElasticEnded: _elastic_ended,
    on.ElasticStops: _elastic_stops,
    on.Taken: _taken,
    on.LookBroke: _look_broke,
    on.SpeakerAsked: _speaker_asked,
    on.NoRuling: _no_ruling,
    on.Kept: _kept,
    on.RanksStopped: _ranks_stopped,
    on.ElasticLate: _elastic_late,
    on.Over: _over,
}
