"""Values that stopped being finite: where it began, before a reduction spread it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.views import place, rank_culprit, ranks_text, where
from rankscope.evidence.model import Call, Evidence, NonFinite, RankEvidence

_ORDER = ("input", "loss", "gradient", "parameter")
_OWN_EXIT_CODE = 76
_SHARES_NO_VALUES = frozenset(
    {"backward", "barrier", "monitored_barrier", "_broadcast_coalesced", "_verify_params_across_processes"}
    | {"init_process_group", "new_group", "split_group", "Work.wait", "Store.wait", "Store.get"}
)

_FIXES = {
    "input": (
        "find the sample and clean or drop it in the dataset: `torch.isfinite(x).all()` before it is batched",
        "look at decoding and normalisation: division by a zero deviation, log of zero, empty cells of a table",
    ),
    "loss": (
        "look for log or division of zero, exp of large values, a mean over nothing (all labels ignored), an "
        "attention row that is masked entirely",
        "run that batch alone under torch.autograd.set_detect_anomaly(True): it names the operation",
        "skip such a step on all ranks together: all_reduce the flag before anyone decides",
    ),
    "gradient": (
        "the derivative of sqrt, norm, log and division is infinite at zero: add an epsilon inside",
        "clip_grad_norm_(..., error_if_nonfinite=True) stops before the step; fp16 needs torch.amp.GradScaler",
        "run that batch alone under torch.autograd.set_detect_anomaly(True): it names the operation",
    ),
    "parameter": (
        "lower the learning rate or warm it up, and clip gradients",
        "go back to a checkpoint from before: a non-finite parameter never becomes finite again",
    ),
}
_UNTRAINED_FIX = (
    "initialise every weight and buffer on every rank, and load the checkpoint on every rank (or broadcast it)",
    "look for torch.empty or a meta-device model that was never filled",
)
_REFERENCES = {
    "input": ("isl-org/ZoeDepth#54", "ecmwf/WeatherGenerator#2724"),
    "loss": ("karpathy/nanochat#662", "ecmwf/WeatherGenerator#2724"),
    "gradient": ("NVIDIA-NeMo/Automodel#2658", "huggingface/transformers#5651"),
    "parameter": ("huggingface/transformers#25686",),
}


@dataclass(frozen=True, slots=True)
class _Noted:
    seen: RankEvidence
    first: NonFinite


def explain_non_finite(evidence: Evidence) -> Finding | None:
    """None where no rank noted a value that was not finite."""
    noted = [_Noted(seen, min(notes, key=lambda note: note.step)) for seen in evidence.ranks if (notes := _notes(seen))]
    if not noted:
        return None
    step = min(each.first.step for each in noted)
    first = [each for each in noted if each.first.step == step]
    kind = min((each.first.kind for each in first), key=_ORDER.index)
    own = [each for each in first if each.first.kind == kind and each.first.local]
    if own:
        return _began_here(kind, own, noted, evidence)
    if kind == "parameter":
        return _in_parameters(first, noted, evidence)
    return _spread(kind, first, noted, evidence)


def ended_by_itself(evidence: Evidence) -> bool:
    """A program that noted a non-finite value and ended because of it, with the code that says so."""
    return any(seen.exit is not None and seen.exit.code == _OWN_EXIT_CODE and _notes(seen) for seen in evidence.ranks)


def as_alternative(finding: Finding) -> Possibility:
    """Beside another verdict: values went bad as well."""
    return Possibility(finding.cause, finding.certainty, finding.summary)


def _notes(seen: RankEvidence) -> tuple[NonFinite, ...]:
    notes = seen.progress.non_finite if seen.progress is not None else ()
    return tuple(note for note in notes if note.kind in _ORDER)


def _began_here(kind: str, own: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    note = own[0].first
    ranks = [each.seen.rank for each in own]
    others = sorted({each.seen.rank for each in noted} - set(ranks))
    everybody = len(own) == evidence.world_size > 1
    certainty: Certainty = "proven" if len(evidence.ranks) == evidence.world_size and _all_seen(evidence) else "likely"
    blamed = own
    because = [_words(each) for each in own[:3]]
    if everybody and kind in ("loss", "gradient"):
        shared = _values_met(evidence, note.step)
        if shared is not None:
            # It may have come from any one of them through this call.
            blamed, certainty = [], "possible"
            because.append(
                f"before that, values of the ranks met in {shared.op}"
                + (f" at {place(where(shared.site[0]))}" if shared.site else "")
            )
        else:
            because.append("all ranks had it in the same step, from finite parameters: they share code or settings")
    if others:
        because.append(
            f"{ranks_text(others)} got it through the reduction: "
            f"what {'it' if len(others) == 1 else 'they'} computed before was finite"
        )
    because += _tensors(note)
    at = _place(note)
    fix = _FIXES[kind]
    if everybody and kind in ("loss", "gradient"):
        fix = (_FIXES["parameter"][0], *fix)
    return Finding(
        outcome="nan",
        cause=f"nan-{kind}",
        certainty=certainty,
        culprits=tuple(rank_culprit(each.seen, _doing(each.first), _place(each.first)) for each in blamed),
        summary=f"the {_noun(kind)} of {ranks_text(ranks)} {_was(kind, note)} {_when(note)}, in {place(at)}"
        + (f"; the reduction spread it to {ranks_text(others)}" if others else ""),
        because=tuple(because),
        fix=fix,
        references=_REFERENCES[kind],
        victims=tuple(others),
        since=min(each.first.at for each in noted),
    )


def _in_parameters(first: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    note = first[0].first
    ranks = [each.seen.rank for each in first]
    others = sorted({each.seen.rank for each in noted} - set(ranks))
    untrained = note.step == 0
    if not untrained and len(ranks) == evidence.world_size > 1 and all(each.first.value == "nan" for each in first):
        return _reached_parameters(first, noted)
    at = _place(note)
    alternatives: tuple[Possibility, ...] = ()
    certainty: Certainty = "proven" if untrained and len(ranks) < evidence.world_size else "likely"
    if not untrained:
        alternatives = (
            Possibility("nan-gradient", "possible", "the gradients were looked at in samples before that step"),
        )
    return Finding(
        outcome="nan",
        cause="nan-parameter",
        certainty=certainty,
        culprits=tuple(rank_culprit(each.seen, _doing(each.first), _place(each.first)) for each in first),
        summary=f"parameters of {ranks_text(ranks)} were not finite {_when(note)}, seen in {place(at)}",
        because=(*(_words(each) for each in first[:3]), *_tensors(note)),
        fix=_UNTRAINED_FIX if untrained else _FIXES["parameter"],
        alternatives=alternatives,
        references=_REFERENCES["parameter"],
        victims=tuple(others),
        since=min(each.first.at for each in noted),
    )


def _reached_parameters(first: Sequence[_Noted], noted: Sequence[_Noted]) -> Finding:
    """Steps that are too large make infinities of finite gradients, not NaN. After a reduction all ranks have what one
    rank's gradients held: nobody is named."""
    note = first[0].first
    ranks = [each.seen.rank for each in first]
    return Finding(
        outcome="nan",
        cause="nan-gradient",
        certainty="likely",
        culprits=(),
        summary=f"parameters held nan {_when(note)} on {ranks_text(ranks)}, and which rank it came from was not seen",
        because=(
            *(_words(each) for each in first[:3]),
            "an optimizer makes infinities of finite gradients at most: those of the step before held nan",
            *_tensors(note),
        ),
        fix=_FIXES["gradient"],
        alternatives=(Possibility("nan-parameter", "possible", "the program itself may have written it there"),),
        references=_REFERENCES["gradient"],
        victims=tuple(sorted({each.seen.rank for each in noted})),
        since=min(each.first.at for each in noted),
    )


def _spread(kind: str, first: Sequence[_Noted], noted: Sequence[_Noted], evidence: Evidence) -> Finding:
    """Only values that had met those of other ranks were bad: nobody is named, unless a rank is alone with it."""
    note = first[0].first
    ranks = [each.seen.rank for each in first]
    alone = len(noted) == 1 and _all_seen(evidence)
    summary = f"the {_noun(kind)} {_was(kind, note)} {_when(note)} on {ranks_text(ranks)}"
    if not alone:
        summary += ", and which rank it came from was not seen"
    because = [_words(each) for each in first[:3]]
    if alone and evidence.world_size > 1:
        because.append("no other rank had it in that step")
    return Finding(
        outcome="nan",
        cause=f"nan-{kind}",
        certainty="likely",
        culprits=(rank_culprit(first[0].seen, _doing(note), _place(note)),) if alone else (),
        summary=summary,
        because=(*because, *_tensors(note)),
        fix=_FIXES[kind],
        references=_REFERENCES[kind],
        victims=() if alone else tuple(sorted({each.seen.rank for each in noted})),
        since=min(each.first.at for each in noted),
    )


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


def _when(note: NonFinite) -> str:
    return f"after {note.step} optimizer step{'' if note.step == 1 else 's'}"


def _noun(kind: str) -> str:
    return {"input": "input", "loss": "loss", "gradient": "gradient", "parameter": "parameters"}[kind]


def _was(kind: str, note: NonFinite) -> str:
    return f"was {note.value}" if kind == "loss" else f"held {note.value}"


def _doing(note: NonFinite) -> str:
    text = f"{_noun(note.kind)} {_was(note.kind, note)} {_when(note)}"
    return f"{text}: {note.detail}" if note.detail else text


def _words(each: _Noted) -> str:
    return f"rank {each.seen.rank}: {_doing(each.first)}"


def _place(note: NonFinite) -> Where | None:
    return where(note.site[0]) if note.site else None


def _tensors(note: NonFinite) -> list[str]:
    if not note.tensors:
        return []
    what = {"input": "inputs", "parameter": "parameters"}.get(note.kind, "gradients")
    shown = note.tensors[:6]
    more = f" and {note.count - len(shown)} more" if note.count > len(shown) else ""
    return [f"{what} that were not finite: {', '.join(shown)}{more}"]
