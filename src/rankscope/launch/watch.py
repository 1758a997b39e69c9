"""Watches a running job: learns its rhythm, looks closely when it falls still or its numbers go bad, and hands over
what it saw. What becomes of the job is not decided here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rankscope.diagnosis.finding import Ruling
from rankscope.diagnosis.rules.standing.endless import GIVEN_UP
from rankscope.evidence.history import with_earlier
from rankscope.evidence.model import Evidence, RankEvidence
from rankscope.launch.events import Event, Looked, Recovered, StragglersSeen, WatchBroke
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.pace import Pace
from rankscope.launch.pairings import PairingWatch
from rankscope.launch.replicas import replicas_differ
from rankscope.launch.vital_signs import VitalSigns
from rankscope.launch.watchdog_words import WatchdogWords
from rankscope.report.conclude import examine

PERIOD_S = 0.5
"""Between glances at a job that goes on: every one of them takes processor time from ranks that use all cores."""
ALERT_PERIOD_S = 0.2
"""Between glances while a rank is still, or calls of ranks may have been paired wrongly."""
FIRST_LOOK_S = 1.0
"""Stillness of all ranks after which the first close look is taken."""
LOOK_S = 1.0
"""About what a look takes."""
LEAST_THRESHOLD_S = 30.0
QUIET_FACTOR = 4.0
"""The automatic threshold, in longest quiet stretches from which the job came back by itself."""
_LATE_LOOK_S = 60.0
_RIPE_SHARE = 0.3
"""Past the threshold the next look comes after this share of the stillness; before it, when that has doubled."""
_NOTES_SETTLE_S = 0.7
"""Ranks note a value that is not finite a step apart: the one that it began on may be the last to say so."""
_REPLICAS_PERIOD_S = 15.0
_TEARDOWN_S = 6.0
"""What an interpreter may take to end after an exception."""


@dataclass(slots=True)
class _Episode:
    """A stretch in which at least one rank has been still."""

    since: float
    next_look: float
    judged: set[int] = field(default_factory=set)
    """Ranks whose stillness had reached the threshold at a look."""
    too_early: set[int] = field(default_factory=set)
    """Ranks whose stillness was still below it in what the last look found: they may have reached it meanwhile, but the
    verdict does not know."""
    seen: Evidence | None = None
    """What the last look saw, with what it knew of those before."""


@dataclass(slots=True)
class _Numbers:
    """What the ranks' pages said of bad numbers so far."""

    bad_since: float | None = None
    judged: bool = False
    replicas_due: float = 0.0
    pairings: PairingWatch | None = field(default_factory=PairingWatch)
    """None once a wrong one was told."""


class Watcher:
    """Runs in a thread of its own until `stop`; hands over `Looked`, `Recovered`, `StragglersSeen` and `WatchBroke`."""

    def __init__(self, job: Job, stall_after_s: float | None, pace: Pace, hand_over: Callable[[Event], None]) -> None:
        self._job = job
        self._fixed_threshold = stall_after_s
        self._pace = pace
        self._hand_over = hand_over
        self._attempt = -1
        self._signs = VitalSigns(job)
        self._words = WatchdogWords()
        self._given_up = False
        self._numbers = _Numbers()
        self._episode: _Episode | None = None
        self._lost: _Episode | None = None
        """Since a node of the job was found gone, whether its ranks are missed or not."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def threshold(self) -> float:
        """Seconds of stillness after which a wait counts as a likely hang."""
        if self._fixed_threshold is not None:
            return self._fixed_threshold
        return max(LEAST_THRESHOLD_S, QUIET_FACTOR * self._signs.longest_quiet_s())

    def _run(self) -> None:
        while not self._stop.wait(self._period()):
            job = self._job
            if job.stopping or not job.ranks:
                continue
            if job.attempt != self._attempt:
                self._attempt, self._episode, self._lost = job.attempt, None, None
                self._signs, self._numbers = VitalSigns(job), _Numbers()
                self._words, self._given_up = WatchdogWords(), False
                self._pace.restart()
            job.poll()
            try:
                self._glance(time.time())
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the watching; it is told at the end
                self._hand_over(WatchBroke(f"{type(error).__name__}: {error}"))

    def _period(self) -> float:
        now = time.time()
        still = any(now - process.life_at > PERIOD_S for process in self._job.ranks if process.exit is None)
        pairings = self._numbers.pairings
        return ALERT_PERIOD_S if still or (pairings is not None and pairings.in_doubt()) else PERIOD_S

    def _glance(self, now: float) -> None:
        if self._look_for_others(now):
            return
        if self._job.failed():
            return  # elastic stops the job, and the evidence is taken then
        living = self._job.living()
        self._mind_lost_nodes(living, now)
        self._signs.feel(living, now)
        self._mind_numbers(now)
        self._mind_replicas(now)
        self._mind_pairings(now)
        self._mind_pace(living)
        if not living or self._job.pump.blocked_s > 0.5:
            # A console that nobody reads holds the ranks back; that is no fault of theirs.
            for process in living:
                process.life_at = now
            self._episode = None
            return
        if not self._mind_watchdog(living, now):
            self._mind_stillness(living, now)

    # Stillness.

    def _mind_watchdog(self, living: list[RankProcess], now: float) -> bool:
        """At the first word of torch's watchdog the evidence is whole: a minute later its victims end one by one."""
        if self._given_up or not self._words.new_word(living, self._job.pump):
            return False
        self._given_up = True
        if self._episode is None:
            self._episode = _Episode(since=now, next_look=now)
        self._look(self._episode)
        return True

    def _mind_stillness(self, living: list[RankProcess], now: float) -> None:
        stillness = [now - process.life_at for process in living]
        overdue = min(self._signs.overdue_s(process, now) for process in living)
        if max(stillness) < FIRST_LOOK_S and overdue <= 0:
            self._end_episode(now)
            return
        if self._episode is None:
            since = now - max(*stillness, overdue)
            self._episode = _Episode(since=since, next_look=since + FIRST_LOOK_S)
        all_still = min(stillness) >= FIRST_LOOK_S * 0.8 or overdue > 0
        due = self._episode.next_look if all_still else max(self._episode.next_look, self._episode.since + 5.0)
        # A look takes about a second: it begins a little early, to have its answer at the threshold.
        ripe = {p.rank for p in living if now - p.life_at >= self.threshold() - LOOK_S}
        if now >= due or not ripe <= self._episode.judged:
            self._look(self._episode)
            ended = time.time()
            still = {p.rank for p in living if ended - p.life_at >= self.threshold()}
            self._episode.judged |= still - self._episode.too_early

    def _end_episode(self, now: float) -> None:
        if self._job.nodes is not None and self._job.nodes.speaks and self._job.nodes.others_still():
            return  # here all is well, elsewhere it is not
        if self._lost is not None:
            return  # whatever moves here, a part of the job is gone
        episode, self._episode = self._episode, None
        if episode is not None:
            self._hand_over(Recovered(now - episode.since))

    def _look(self, episode: _Episode) -> None:
        self._job.stall_after_s = self.threshold()
        episode.too_early = set()
        if self._job.nodes is not None:
            self._job.nodes.tell_still(True)
        evidence = self._job.gather("still")
        now = time.time()
        lasted = now - episode.since
        rest = lasted if lasted < self.threshold() else _RIPE_SHARE * lasted
        episode.next_look = now + min(max(rest, 0.5), _LATE_LOOK_S)
        settled = episode.since + GIVEN_UP * self.threshold() + 0.2
        if now < settled:
            episode.next_look = min(episode.next_look, settled)  # what is only slow before may be called a hang then
        if evidence is None:
            return
        episode.seen = evidence = with_earlier(evidence, episode.seen)
        episode.too_early = {
            seen.rank for seen in evidence.ranks if seen.still_for_s is not None and seen.still_for_s < self.threshold()
        }
        self._signs.forget_pulses()
        self._signs.note_look(evidence, now)
        if self._job.failed():
            return
        ruling = examine(evidence)
        elsewhere = ruling.outcome == "crash" and self._failed_elsewhere(evidence)
        if ruling.outcome == "crash" and not elsewhere and _just_raised(ruling, evidence, now):
            episode.next_look = now + FIRST_LOOK_S  # it is about to end by itself, with a code of its own
            return
        still_s = now - episode.since
        self._hand_over(Looked(ruling, evidence, still_s, self.threshold(), elsewhere, self._given_up))

    # Numbers.

    def _mind_numbers(self, now: float) -> None:
        """Of values that are not finite."""
        numbers = self._numbers
        if numbers.judged:
            return
        if numbers.bad_since is None and any(beat.non_finite for beat in self._signs.heartbeats().values()):
            numbers.bad_since = now
        if numbers.bad_since is None or now < numbers.bad_since + _NOTES_SETTLE_S:
            return
        numbers.judged = True
        self._judge_numbers()

    def _mind_replicas(self, now: float) -> None:
        """Compares what the ranks wrote down of parameters that must be equal, now and then."""
        if now < self._numbers.replicas_due or self._numbers.judged:
            return
        self._numbers.replicas_due = now + _REPLICAS_PERIOD_S
        if not any(beat.steps for beat in self._signs.heartbeats().values()):
            return
        if replicas_differ(self._job.pages_of_ranks()):
            self._numbers.replicas_due = float("inf")
            self._judge_numbers()

    def _mind_pairings(self, now: float) -> None:
        """Compares what the ranks call: a backend that pairs calls which do not belong together goes on."""
        pairings = self._numbers.pairings
        progress = {rank: beat.steps + beat.calls for rank, beat in self._signs.heartbeats().items()}
        if pairings is None or not pairings.wrong(self._job.pages_of_ranks(), now, progress):
            return
        ruling = self._judge_numbers()
        self._signs.forget_pulses()
        if ruling is not None and ruling.outcome == "corrupt":
            self._numbers.pairings = None

    def _judge_numbers(self) -> Ruling | None:
        """None where only the node that speaks for all has the evidence of all."""
        evidence = self._job.gather("non-finite")
        if evidence is None:
            return None
        ruling = examine(evidence)
        self._hand_over(Looked(ruling, evidence))
        return ruling

    def _mind_pace(self, living: list[RankProcess]) -> None:
        if len(living) < len(self._job.ranks):
            return
        beats = self._signs.heartbeats()
        phases = {p.rank: beats[p.rank].phases if p.rank in beats else None for p in living}
        slow = self._pace.glance(phases, {process.rank: process.pid for process in living})
        if slow is not None:
            self._hand_over(StragglersSeen(slow))

    # Other nodes.

    def _look_for_others(self, now: float) -> bool:
        """Another node of the job has asked for a look; only the one that speaks takes it."""
        nodes = self._job.nodes
        if nodes is None:
            return False
        if self._episode is None:
            nodes.tell_still(False)
        wanted = nodes.look_wanted()
        if wanted is None:
            return False
        if wanted == "failure":
            evidence = nodes.gather(wanted)
            if evidence is not None:
                self._hand_over(Looked(examine(evidence), evidence, elsewhere=True))
            return True
        if wanted == "non-finite":
            self._judge_numbers()
            return True
        if self._episode is None:
            self._episode = _Episode(since=now, next_look=now)
        self._look(self._episode)
        return True

    def _mind_lost_nodes(self, living: list[RankProcess], now: float) -> None:
        """Ranks that try again and again to reach a node that is gone never look still, and where all have ended well
        only the launchers wait for each other."""
        nodes = self._job.nodes
        if nodes is None:
            return
        nodes.tell_done(not living)
        if not nodes.somebody_is_gone():
            self._lost = None
            return
        if self._lost is None:
            self._lost = _Episode(since=now, next_look=now)
        if now >= self._lost.next_look:
            self._look(self._lost)

    def _failed_elsewhere(self, evidence: Evidence) -> bool:
        own = {process.rank for process in self._job.ranks}
        return self._job.nodes is not None and any(_ended_badly(s) for s in evidence.ranks if s.rank not in own)


def _ended_badly(seen: RankEvidence) -> bool:
    return seen.exit is not None and seen.exit.code != 0 and not seen.exit.by_launcher


def _just_raised(ruling: Ruling, evidence: Evidence, now: float) -> bool:
    guilty = {culprit.rank for culprit in ruling.culprits}
    return any(
        error.source == "hook" and error.at is not None and now - error.at < _TEARDOWN_S
        for seen in evidence.ranks
        if seen.rank in guilty and seen.exit is None
        for error in seen.exceptions
    )
