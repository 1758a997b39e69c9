"""Values that stopped being finite: where it began, before a reduction spread it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.numbers import (
    BadEverywhere,
    BadKind,
    BadNowhereElse,
    BadTensors,
    CameFromSomewhere,
    GotByReduction,
    GradientsSampled,
    HeldBad,
    InputKept,
    MayBeWritten,
    StepOfFiniteGradients,
    ValuesMet,
    WentBad,
)
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.views import rank_culprit, where
from rankscope.evidence.model import Call, Evidence, NonFinite, RankEvidence

_ORDER: tuple[BadKind, ...] = ("input", "loss", "gradient", "parameter")
"""In which a step comes by them."""
_KINDS: dict[str, BadKind] = {kind: kind for kind in _ORDER}
_OWN_EXIT_CODE = 76
_MOST_RANKS_TOLD = 3
_MOST_TENSORS_TOLD = 6
_SHARES_NO_VALUES = frozenset(
    {"backward", "barrier", "monitored_barrier", "_broadcast_coalesced", "_verify_params_across_processes"}
    | {"init_process_group", "new_group", "split_group", "Work.wait", "Store.wait", "Store.get"}
)

_STEADY = Advice("steady-settings")
_FIXES: dict[BadKind, tuple[Advice, ...]] = {
    "input": (Advice("clean-the-sample"), Advice("check-normalisation")),
    "loss": (Advice("look-for-log-of-zero"), Advice("detect-anomaly"), _STEADY, Advice("skip-together")),
    "gradient": (Advice("add-epsilon"), Advice("stop-before-the-step"), _STEADY, Advice("detect-anomaly")),
    "parameter": (Advice("lower-the-rate"), _STEADY, Advice("go-back-to-checkpoint")),
}
_UNTRAINED_FIX = (Advice("initialise-everywhere"), Advice("look-for-empty-weights"))
_REFERENCES: dict[BadKind, tuple[str, ...]] = {
    "input": ("isl-org/ZoeDepth#54", "ecmwf/WeatherGenerator#2724"),
    "loss": ("karpathy/nanochat#662", "ecmwf/WeatherGenerator#2724"),
    "gradient": ("NVIDIA-NeMo/Automodel#2658", "huggingface/transformers#5651"),
    "parameter": ("huggingface/transformers#25686",),
}


class _Noted(msgspec.Struct, frozen=True):
    seen: RankEvidence
    first: NonFinite
    kind: BadKind
    looked_back: bool
    """What it had been fed was looked at when values were bad that had met those of other ranks."""

    @property
    def rank(self) -> int:
        return self.seen.rank

    @property
    def where(self) -> Where | None:
        return where(self.first.site[0]) if self.first.site else None

    @property
    def held(self) -> HeldBad:
        return HeldBad(self.rank, self.kind, self.first.value, self.first.step, self.first.detail)


def explain_non_finite(evidence: Evidence) -> Finding | None:
    """None where no rank noted a value that was not finite."""
    noted = [each for seen in evidence.ranks if (each := _noted(seen)) is not None]
    if not noted:
        return None
    code = CodeReader(evidence)
    noted = [_where_computed(each, code) for each in noted]
    step = min(each.first.step for each in noted)
    first = [each for each in noted if each.first.step == step]
    kind = min((each.kind for each in first), key=_ORDER.index)
    own = [each for each in first if each.kind == kind and each.first.local]
    if own:
        return _began_here(kind, own, noted, evidence)
    if kind == "parameter":
        return _in_parameters(first, noted, evidence)
    return _spread(kind, first, noted, evidence)


def ended_by_itself(evidence: Evidence) -> bool:
    """A program that noted a non-finite value and ended because of it, with the code that says so."""
    return any(seen.exit is not None and seen.exit.code == _OWN_EXIT_CODE and _notes(seen) for seen in evidence.ranks)


def _notes(seen: RankEvidence) -> tuple[NonFinite, ...]:
    notes = seen.progress.non_finite if seen.progress is not None else ()
    return tuple(note for note in notes if note.kind in _KINDS)


def _noted(seen: RankEvidence) -> _Noted | None:
    notes = _notes(seen)
    if not notes:
        return None
    first = min(notes, key=lambda note: (note.step, _ORDER.index(_KINDS[note.kind])))
    looked_back = first.kind == "input" and any(not note.local for note in notes)
    return _Noted(seen, first, _KINDS[first.kind], looked_back)


def _where_computed(each: _Noted, code: CodeReader) -> _Noted:
    """A loss is to be looked at where it was computed, an input where the model was fed: the line that differentiates
    comes after both."""
    if each.kind not in ("input", "loss") or not each.first.site:
        return each
    frame, *outer = each.first.site
    line = code.computed_at(frame) if each.kind == "loss" else code.fed_at(frame)
    if line is None:
        return each
    return replace(each, first=replace(each.first, site=(replace(frame, line=line), *outer)))


def _began_here(kind: BadKind, own: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    ranks = _ranks(own)
    others = _others(noted, ranks)
    everybody = len(own) == evidence.world_size > 1
    sure = _all_seen(evidence) and not any(each.looked_back for each in own)
    certainty: Certainty = "proven" if sure else "likely"
    blamed = own
    because: list[Fact] = [each.held for each in own[:_MOST_RANKS_TOLD]]
    because += [InputKept(each.rank, each.first.step) for each in own if each.looked_back]
    together = everybody and kind in ("loss", "gradient")
    if together:
        met = _values_met(evidence, own[0].first.step)
        if met is not None:
            # It may have come from any one of them through this call.
            blamed, certainty = (), "possible"
            because.append(ValuesMet(met.op, where(met.site[0]) if met.site else None))
        else:
            because.append(BadEverywhere(own[0].first.step))
    if others:
        because.append(GotByReduction(others))
    return Finding(
        outcome="nan",
        cause=f"nan-{kind}",
        certainty=certainty,
        culprits=_culprits(blamed),
        summary=WentBad(kind, ranks, own[0].first.value, own[0].first.step, own[0].where, others),
        because=(*because, *_tensors(own[0])),
        fix=(_FIXES["parameter"][0], *_FIXES[kind]) if together else _FIXES[kind],
        references=_REFERENCES[kind],
        victims=others,
        since=_since(noted),
    )


def _in_parameters(first: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    note, ranks = first[0].first, _ranks(first)
    untrained = note.step == 0
    if not untrained and len(ranks) == evidence.world_size > 1 and all(each.first.value == "nan" for each in first):
        return _reached_parameters(first, noted)
    sampled = Possibility("nan-gradient", "possible", GradientsSampled(note.step - 1))
    return Finding(
        outcome="nan",
        cause="nan-parameter",
        certainty="proven" if untrained and len(ranks) < evidence.world_size else "likely",
        culprits=_culprits(first),
        summary=WentBad("parameter", ranks, note.value, note.step, first[0].where),
        because=(*(each.held for each in first[:_MOST_RANKS_TOLD]), *_tensors(first[0])),
        fix=_UNTRAINED_FIX if untrained else _FIXES["parameter"],
        alternatives=() if untrained else (sampled,),
        references=_REFERENCES["parameter"],
        victims=_others(noted, ranks),
        since=_since(noted),
    )


def _reached_parameters(first: Sequence[_Noted], noted: Sequence[_Noted]) -> Finding:
    """Steps that are too large make infinities of finite gradients, not NaN. After a reduction all ranks have what one
    rank's gradients held: nobody is named."""
    note = first[0].first
    return Finding(
        outcome="nan",
        cause="nan-gradient",
        certainty="likely",
        culprits=(),
        summary=CameFromSomewhere("parameter", _ranks(first), note.value, note.step),
        because=(
            *(each.held for each in first[:_MOST_RANKS_TOLD]),
            StepOfFiniteGradients(note.step - 1),
            *_tensors(first[0]),
        ),
        fix=_FIXES["gradient"],
        alternatives=(Possibility("nan-parameter", "possible", MayBeWritten(note.step - 1)),),
        references=_REFERENCES["gradient"],
        victims=_ranks(noted),
        since=_since(noted),
    )


def _spread(kind: BadKind, first: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    """Only values that had met those of other ranks were bad: nobody is named, unless a rank is alone with it."""
    note = first[0].first
    alone = len(noted) == 1 and _all_seen(evidence)
    because: list[Fact] = [each.held for each in first[:_MOST_RANKS_TOLD]]
    if alone and evidence.world_size > 1:
        because.append(BadNowhereElse(note.step))
    summary = (
        WentBad(kind, _ranks(first), note.value, note.step, first[0].where)
        if alone
        else CameFromSomewhere(kind, _ranks(first), note.value, note.step)
    )
    return Finding(
        outcome="nan",
        cause=f"nan-{kind}",
        certainty="likely",
        culprits=_culprits(first) if alone else (),
        summary=summary,
        because=(*because, *_tensors(first[0])),
        fix=_FIXES[kind],
        references=_REFERENCES[kind],
        victims=() if alone else _ranks(noted),
        since=_since(noted),
    )


def _ranks(noted: Sequence[_Noted]) -> tuple[int, ...]:
    return tuple(sorted(each.rank for each in noted))


def _others(noted: Sequence[_Noted], ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rank for rank in _ranks(noted) if rank not in ranks)


def _culprits(noted: Sequence[_Noted]) -> tuple[Suspect, ...]:
    return tuple(rank_culprit(each.seen, each.held, each.where) for each in noted)


def _since(noted: Sequence[_Noted]) -> float:
    return min(each.first.at for each in noted)


def _tensors(each: _Noted) -> tuple[Fact, ...]:
    names = each.first.tensors[:_MOST_TENSORS_TOLD]
    return (BadTensors(each.kind, names, each.first.count),) if names else ()


def _all_seen(evidence: Evidence) -> bool:
    return len(evidence.ranks) == evidence.world_size and all(seen.progress is not None for seen in evidence.ranks)


def _values_met(evidence: Evidence, step: int) -> Call | None:
    """A collective of that step, before its backward pass, through which one rank's values could reach another's."""
    for seen in evidence.ranks:
        for call in seen.progress.calls if seen.progress is not None else ():
            if call.step != step or call.depth > 0:
                continue
            if call.op == "backward":
                break
            if call.op not in _SHARES_NO_VALUES:
                return call
    return None
