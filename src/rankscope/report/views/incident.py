"""What a report is about: the verdict, and the case behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from rankscope.diagnosis import views
from rankscope.diagnosis.case import Case, prepare
from rankscope.diagnosis.verdict import Verdict, Where
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.curves import Curve, read_curves
from rankscope.evidence.model import Evidence, RankEvidence
from rankscope.report.words.languages import Language, language

Role = Literal["culprit", "victim", "other"]
_SAME, _MOVED = "same stack in all samples", "moved between samples"


@dataclass(frozen=True)
class Incident:
    verdict: Verdict
    case: Case
    name: str = ""
    """Of the run: that of its folder."""
    curves: tuple[Curve, ...] = ()
    """What the program wrote of its steps."""

    @property
    def words(self) -> Language:
        """Of the verdict: what stands around it agrees with it."""
        return language(self.verdict.language)

    @property
    def evidence(self) -> Evidence:
        return self.case.evidence

    @cached_property
    def culprits(self) -> frozenset[int]:
        """Ranks that were never started among them, where those are to blame."""
        named = {each.rank for each in self.verdict.culprits if each.rank is not None}
        missing = any(each.rank is None and each.process == "rank" for each in self.verdict.culprits)
        return frozenset(named | set(self.case.graph.absent if missing else ()))

    @cached_property
    def victims(self) -> frozenset[int]:
        return frozenset(self.verdict.victims)

    @cached_property
    def seen(self) -> dict[int, RankEvidence]:
        return {seen.rank: seen for seen in self.evidence.ranks}

    def role(self, rank: int) -> Role:
        if rank in self.culprits:
            return "culprit"
        return "victim" if rank in self.victims else "other"

    def state(self, rank: int) -> State | None:
        return self.case.graph.states.get(rank)

    def where(self, rank: int) -> Where | None:
        """The user's line at which the rank stands, or ended."""
        state, seen = self.state(rank), self.seen.get(rank)
        if state is not None and state.wait is not None and state.wait.site:
            return views.where(state.wait.site[0])
        if seen is None:
            return None
        if seen.exit is not None and seen.exceptions:
            return views.where(views.innermost_user_frame(seen.exceptions[-1].frames))
        return views.current_where(seen)


def incident_of(verdict: Verdict, evidence: Evidence, folder: Path | None = None) -> Incident:
    """`folder`: that of the run, where there is one."""
    if folder is None:
        return Incident(verdict, prepare(evidence))
    return Incident(verdict, prepare(evidence), folder.resolve().name, read_curves(folder))


def movement(seen: RankEvidence, words: Language, *, waits: bool) -> tuple[str, str]:
    """`moved`, `still`, `ended` or nothing, and the same in words. One that waits for others may spin: its processor
    time is no movement."""
    if seen.exit is not None:
        return "ended", ended(seen.exit.code, words)
    same = views.same_stack(seen)
    if waits and same is not None:
        return ("still", words.label(_SAME)) if same else ("moved", words.label(_MOVED))
    if views.moving(seen):
        return "moved", words.label(_MOVED)
    if seen.still_for_s is not None:
        return "still", words.label("for {time}", time=words.duration(seen.still_for_s))
    return ("still", words.label(_SAME)) if views.same_stack(seen) else ("", "")


def ended(code: int, words: Language) -> str:
    """`exit code 1`, `killed by SIGKILL`."""
    if code >= 0:
        return words.label("exit code {code}", code=code)
    import signal

    try:
        return words.label("killed by {signal}", signal=signal.Signals(-code).name)
    except ValueError:
        return words.label("killed by signal {number}", number=-code)
