"""Words about numbers: values that stopped being finite, replicas that differ, ranks that others wait for."""

from __future__ import annotations

from rankscope.diagnosis.facts.numbers import (
    ArriveLast,
    BadEverywhere,
    BadKind,
    BadNowhereElse,
    BadTensors,
    CameFromSomewhere,
    DifferedAgain,
    FewerSteps,
    GotByReduction,
    GradientsSampled,
    HeldBad,
    HoldsOtherCopy,
    InputKept,
    KeptWaiting,
    LoadedAlone,
    MayBeWritten,
    ReplicasDiffer,
    RewroteAlone,
    StepOfFiniteGradients,
    SumDiffers,
    ValuesMet,
    WentBad,
    WorksLonger,
)
from rankscope.report.words import doing, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import after_steps, place, ranks_text, verb

ADVICE.update(
    {
        "clean-the-sample": "find the sample and clean or drop it in the dataset: `torch.isfinite(x).all()` before it "
        "is batched",
        "check-normalisation": "look at decoding and normalisation: division by a zero deviation, log of zero, empty "
        "cells of a table",
        "look-for-log-of-zero": "look for log or division of zero, exp of large values, a mean over nothing (all "
        "labels ignored), an attention row that is masked entirely",
        "detect-anomaly": "run that batch alone under torch.autograd.set_detect_anomaly(True): it names the operation",
        "skip-together": "skip such a step on all ranks together: all_reduce the flag before anyone decides",
        "add-epsilon": "the derivative of sqrt, norm, log and division is infinite at zero: add an epsilon inside",
        "stop-before-the-step": "clip_grad_norm_(..., error_if_nonfinite=True) stops before the step; fp16 needs "
        "torch.amp.GradScaler",
        "lower-the-rate": "lower the learning rate or warm it up, and clip gradients",
        "steady-settings": "where the data are clean, a setting is at fault: reduce learning_rate, init_std and "
        "max_grad_norm (gradient clipping), switch use_amp off (fp32); `rankscope train --preset stable` has all of it",
        "go-back-to-checkpoint": "go back to a checkpoint from before: a non-finite parameter never becomes finite "
        "again",
        "initialise-everywhere": "initialise every weight and buffer on every rank, and load the checkpoint on every "
        "rank (or broadcast it)",
        "look-for-empty-weights": "look for torch.empty or a meta-device model that was never filled",
        "skip-steps-together": "let all ranks decide together whether to skip a step: all_reduce the flag before "
        "anyone acts on it",
        "load-everywhere": "load checkpoints and change parameters on every rank, or before DistributedDataParallel "
        "is made",
        "look-for-other-writers": "look for parameters that are changed outside of the optimizer, and for random "
        "numbers that differ between ranks",
        "repeat-on-each-device": "code or hardware? `rankscope check single --repeat 60` on that host makes one "
        "step again and again on every device: other bits for the same step are the device's fault",
        "more-loader-workers": "give this rank's loader more workers (num_workers, prefetch_factor); look at the disk "
        "that it reads from",
        "spread-long-samples": "spread long samples evenly among the ranks: sort by length, or batch by tokens",
        "compare-processors": "compare this rank's processor or GPU with the others': clock, temperature, other "
        "processes on it",
        "save-with-all-ranks": "save with all ranks (torch.distributed.checkpoint) or asynchronously, and less often",
        "move-work-out-of-the-step": "move logging, evaluation and other work of one rank out of the step, or into a "
        "background thread",
    }
)
_PHASES = {
    "data": "loading data",
    "forward/backward": "forward and backward",
    "save": "saving",
    "other": "code outside of forward, backward, loading and saving",
}
_TENSORS: dict[BadKind, str] = {
    "input": "inputs",
    "loss": "gradients",
    "gradient": "gradients",
    "parameter": "parameters",
}


def _steps(count: int) -> str:
    return after_steps(count, "optimizer step")


def _held(kind: BadKind, value: str) -> str:
    noun = "parameters" if kind == "parameter" else kind
    return f"{noun} {'was' if kind == 'loss' else 'held'} {value}"


@sentence.register
def _(fact: WentBad) -> str:
    if fact.what == "parameter":
        text = (
            f"parameters of {ranks_text(fact.ranks)} were not finite {_steps(fact.step)}, seen in {place(fact.where)}"
        )
    else:
        did = "was" if fact.what == "loss" else "held"
        text = (
            f"the {fact.what} of {ranks_text(fact.ranks)} {did} {fact.value} {_steps(fact.step)}, "
            f"in {place(fact.where)}"
        )
    return f"{text}; the reduction spread it to {ranks_text(fact.spread_to)}" if fact.spread_to else text


@sentence.register
def _(fact: CameFromSomewhere) -> str:
    noun = "" if fact.what == "parameter" else "the "
    return (
        f"{noun}{_held(fact.what, fact.value)} {_steps(fact.step)} on {ranks_text(fact.ranks)}, "
        "and which rank it came from was not seen"
    )


@sentence.register
def _(fact: HeldBad) -> str:
    return f"rank {fact.rank}: {doing(fact)}"


@doing.register
def _(fact: HeldBad) -> str:
    text = f"{_held(fact.what, fact.value)} {_steps(fact.step)}"
    return f"{text}: {fact.detail}" if fact.detail else text


@sentence.register
def _(fact: BadTensors) -> str:
    more = f" and {fact.count - len(fact.names)} more" if fact.count > len(fact.names) else ""
    return f"{_TENSORS[fact.what]} that were not finite: {', '.join(fact.names)}{more}"


@sentence.register
def _(fact: GotByReduction) -> str:
    them = "it" if len(fact.ranks) == 1 else "they"
    return f"{ranks_text(fact.ranks)} got it through the reduction: what {them} computed before was finite"


@sentence.register
def _(fact: InputKept) -> str:
    return (
        f"the loss of that step was finite; when parameters were bad after it, rank {fact.rank} still had its inputs "
        "and looked at them"
    )


@sentence.register
def _(_fact: BadEverywhere) -> str:
    return "all ranks had it in the same step, from finite parameters: they share code or settings"


@sentence.register
def _(_fact: BadNowhereElse) -> str:
    return "no other rank had it in that step"


@sentence.register
def _(fact: ValuesMet) -> str:
    at = f" at {place(fact.where)}" if fact.where is not None else ""
    return f"before that, values of the ranks met in {fact.op}{at}"


@sentence.register
def _(_fact: StepOfFiniteGradients) -> str:
    return "an optimizer makes infinities of finite gradients at most: those of the step before held nan"


@sentence.register
def _(_fact: GradientsSampled) -> str:
    return "the gradients were looked at in samples before that step"


@sentence.register
def _(_fact: MayBeWritten) -> str:
    return "the program itself may have written it there"


@sentence.register
def _(fact: ReplicasDiffer) -> str:
    who = (
        f"{ranks_text(fact.odd)} no longer {verb(fact.odd, 'hold')} the parameters of the others"
        if fact.odd
        else f"{ranks_text(fact.ranks)} no longer hold the same parameters"
    )
    alone = f"; no other rank loaded a checkpoint at {place(fact.loaded)}" if fact.loaded is not None else ""
    return f"{who}, first seen {_steps(fact.step)}{alone}"


@sentence.register
def _(fact: SumDiffers) -> str:
    values = ", ".join(f"rank {rank}: {value:.6g}" for rank, value in fact.sums)
    return f"the sum of {fact.name} differs {_steps(fact.step)}: {values}"


@sentence.register
def _(fact: DifferedAgain) -> str:
    return f"it differed in {fact.times} comparisons, the last {_steps(fact.last_step)}"


@sentence.register
def _(fact: FewerSteps) -> str:
    return f"{ranks_text(fact.ranks)} made fewer optimizer steps than the others"


@sentence.register
def _(fact: LoadedAlone) -> str:
    times = "" if fact.times == 1 else f" {fact.times} times"
    return f"only rank {fact.rank} loaded a checkpoint{times} at {place(fact.where)}"


@sentence.register
def _(fact: RewroteAlone) -> str:
    did = f"changed the learning rate from {fact.note}"
    if fact.what == "load_state_dict":
        did = f"called {fact.note}.load_state_dict"
    who = f"{ranks_text(fact.ranks)} {did} at {place(fact.where)}, after {fact.step} steps"
    return f"{who}; {ranks_text(fact.others)} did not"


@sentence.register
def _(fact: HoldsOtherCopy) -> str:
    return f"rank {fact.rank}'s copy of the model differs from the others'"


@doing.register
def _(_fact: HoldsOtherCopy) -> str:
    return "its copy of the model differs from the others'"


@sentence.register
def _(fact: KeptWaiting) -> str:
    at = f", at {place(fact.where)}" if fact.where is not None else ""
    return (
        f"{ranks_text(fact.ranks)} kept {ranks_text(fact.others)} waiting for {fact.lost_s:.1f} s "
        f"({fact.share:.0%} of the time): {fact.factor:g} times their work, most of it in {_PHASES[fact.phase]}{at}"
    )


@sentence.register
def _(fact: ArriveLast) -> str:
    return (
        f"{ranks_text(fact.others)} {verb(fact.others, 'wait')} in collectives; {ranks_text(fact.ranks)} "
        f"{verb(fact.ranks, 'arrive')} there last"
    )


@sentence.register
def _(fact: WorksLonger) -> str:
    return f"rank {fact.rank}: {doing(fact)}"


@doing.register
def _(fact: WorksLonger) -> str:
    return f"{fact.factor:g} times the others' work, in {_PHASES[fact.phase]}"
