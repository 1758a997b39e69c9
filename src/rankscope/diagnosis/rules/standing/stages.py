"""The stage that each rank is in, said in the verdict; and what helps where a well-known call does not return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.roots import AfterStage, InsideStage, InStage
from rankscope.diagnosis.finding import Ruling, Suspect
from rankscope.evidence.model import Evidence, Progress, Stage
from rankscope.evidence.stage_numbers import SharedNumbers, numbered

_LONG_LIVED = frozenset({"training", "job"})
"""Stages that last as long as the program: what is inside them tells more."""

_LOGGER = (Advice("logger-on-rank-0"), Advice("logger-time-limit"))
_TRAINER = (Advice("name-the-strategy"), Advice("all-ranks-started"))
_HUB = (Advice("fetch-before"), Advice("cache-on-shared-disk"))
_DIRECTORY = (Advice("directory-on-rank-0"),)
_GROUP = (Advice("before-group"), Advice("during-group"))

_FIXES: dict[str, tuple[Advice, ...]] = {
    "logger": _LOGGER,
    "trainer": _TRAINER,
    "tokenizer": _HUB,
    "dataset": _HUB,
    "directory": _DIRECTORY,
    "process group": _GROUP,
}
_HUB_LABELS = "from_pretrained"
_REFERENCES: dict[str, tuple[str, ...]] = {
    "logger": ("Lightning-AI/pytorch-lightning#6106",),
    "tokenizer": ("allenai/OLMo#550",),
}
_HELPED = frozenset({"blocked-call", "stalled", "lock-wait", "slow-rank", "rank-missing", "gil-held"})
"""Causes in which the rank stands where it stands because a call does not return."""


def with_stages(ruling: Ruling, evidence: Evidence) -> Ruling:
    """The verdict with the stage of every rank, and with the fix for the call in which the culprits stand."""
    stages: dict[int, Fact] = dict(
        stages_of({seen.rank: seen.progress for seen in evidence.ranks if seen.progress is not None})
    )
    culprits = tuple(
        replace(culprit, stage=stages.get(culprit.rank)) if culprit.rank is not None else culprit
        for culprit in ruling.culprits
    )
    ruling = replace(ruling, stages=stages, culprits=culprits)
    if ruling.outcome not in ("hang", "slow"):
        return ruling
    standing = _standing_in(ruling.culprits, evidence)
    if not standing:
        return ruling
    kinds = {_kind(stage) for stage in standing.values()}
    kind = next(iter(kinds)) if len(kinds) == 1 and ruling.cause in _HELPED else ""
    if ruling.cause == "rank-missing":
        # What is known already says what to do; the trainer around it is the second place to look at.
        inside_trainer = any(_inside_trainer(seen.progress) for seen in evidence.ranks if seen.progress is not None)
        fix = (*ruling.fix, *(_TRAINER if inside_trainer else _FIXES.get(kind, ())))
    else:
        fix = (*_FIXES.get(kind, ()), *ruling.fix)
    return replace(
        ruling,
        because=tuple(dict.fromkeys((*ruling.because, *_facts(standing)))),
        fix=tuple(dict.fromkeys(fix)),
        references=tuple(dict.fromkeys((*ruling.references, *_REFERENCES.get(kind, ())))),
    )


def stages_of(seen: Mapping[int, Progress]) -> Iterator[tuple[int, InStage | AfterStage]]:
    """The stage that each rank is in, or the one that it passed last. Numbers are the same on every rank; where a page
    no longer holds its first stages, they are the rank's own count."""
    whole = all(not progress.stages or progress.stages[0].index == 0 for progress in seen.values())
    numbers = SharedNumbers(len(seen))
    own = {rank: list(progress.stages) for rank, progress in seen.items()}
    shared = numbered(own, numbers) if whole else own
    for rank, progress in seen.items():
        inside = open_stage(progress)
        passed = [stage for stage in shared[rank] if stage.number]
        if inside is not None:
            number = numbers.expected(rank, inside) if whole else progress.stages_passed + 1
            yield rank, InStage(number, inside.label)
        elif passed:
            last = max(passed, key=lambda stage: (stage.left_at or 0.0, stage.index))
            yield rank, AfterStage(last.number, last.words)


def open_stage(progress: Progress) -> Stage | None:
    """The innermost stage that the rank is in, those that last as long as the program left out where others are."""
    inside = [stage for stage in progress.stages if stage.left_at is None]
    short = [stage for stage in inside if stage.kind not in _LONG_LIVED]
    return short[-1] if short else inside[-1] if inside else None


def _standing_in(culprits: tuple[Suspect, ...], evidence: Evidence) -> dict[int, Stage]:
    """Suspect → the stage whose call it stands in. Of a culprit that is no rank, that of the ranks which all wait."""
    guilty = {culprit.rank for culprit in culprits if culprit.rank is not None}
    found = {}
    for seen in evidence.ranks:
        if seen.progress is None or seen.exit is not None or (guilty and seen.rank not in guilty):
            continue
        stage = open_stage(seen.progress)
        if stage is not None and stage.kind not in _LONG_LIVED:
            found[seen.rank] = stage
    return found


def _inside_trainer(progress: Progress) -> bool:
    return any(stage.left_at is None and stage.kind in ("trainer", "training") for stage in progress.stages)


def _facts(standing: dict[int, Stage]) -> list[InsideStage]:
    by_label: dict[str, list[int]] = {}
    for rank, stage in standing.items():
        by_label.setdefault(stage.label, []).append(rank)
    facts = []
    for label, ranks in by_label.items():
        site = standing[ranks[0]].site
        facts.append(InsideStage(tuple(ranks), label, views.where(site[0]) if site else None))
    return facts


def _kind(stage: Stage) -> str:
    return "tokenizer" if stage.kind == "model" and _HUB_LABELS in stage.label else stage.kind
