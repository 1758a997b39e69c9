"""A rank that is alive and at work while the others wait: not a hang, but the rank to look at."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import AtStage, Child, Does, NotRuledOut, Phase, Works
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.endless import may_be_endless
from rankscope.diagnosis.rules.standing.frames import above_user, in_module
from rankscope.diagnosis.rules.standing.gpu import waits_for_busy_gpu
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.views import current_where, moving, newest_main_thread
from rankscope.evidence.model import Evidence, Frame, RankEvidence

_WRITES_MUCH_BYTES_PER_S = 1_000_000

_PHASES: tuple[tuple[Phase, tuple[str, ...], frozenset[str] | None], ...] = (
    (
        "compiling",
        (
            *("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/"),
            *("triton/compiler/", "torch/utils/cpp_extension.py"),
        ),
        None,
    ),
    ("saving", ("torch/serialization.py",), frozenset({"save", "_save", "_legacy_save"})),
    ("loading", ("torch/serialization.py",), frozenset({"load", "_load", "_legacy_load", "persistent_load"})),
    ("checkpoint", ("torch/distributed/checkpoint/", "safetensors/"), None),
    ("data", ("torch/utils/data/",), None),
    ("preparing", ("datasets/", "tokenizers/", "transformers/tokenization"), None),
)
_FIXES: dict[Phase, tuple[Advice, ...]] = {
    "compiling": (Advice("compile-first"), Advice("timeout-for-first-steps")),
    "saving": (Advice("save-together"), Advice("timeout-above", what="a save")),
    "preparing": (Advice("prepare-before"), Advice("timeout-above", what="the preparation")),
    "importing": (Advice("local-environment"),),
}
_GENERAL = (Advice("let-it-work"), Advice("split-the-work"))


def at_work(rank: RankEvidence, evidence: Evidence) -> Stand:
    """What a living rank is busy with."""
    doing = _work(rank, evidence)
    noted = rank.progress
    alternatives: tuple[Possibility, ...] = ()
    if doing.phase == "gpu":
        alternatives = (Possibility("gpu-stuck", "possible", NotRuledOut("endless-kernel")),)
    elif may_be_endless(rank, evidence):
        alternatives = (Possibility("endless-loop", "possible", NotRuledOut("endless-loop"), Advice("look-again")),)
    return Stand(
        cause="slow-rank",
        at=doing.where,
        doing=doing,
        because=(
            *movement(rank),
            *((AtStage(noted.stage, noted.steps),) if noted is not None and noted.stage else ()),
        ),
        fix=_FIXES.get(doing.phase, _GENERAL),
        alternatives=alternatives,
        summary=Does(rank.rank, doing),
        certainty="likely",
        outcome="slow",
    )


def _work(rank: RankEvidence, evidence: Evidence) -> Works:
    at = current_where(rank)
    phase = _phase(rank)
    if phase:
        return Works(at, phase)
    if (rate := _write_rate(rank)) >= _WRITES_MUCH_BYTES_PER_S:
        return Works(at, "writing", rate)
    if waits_for_busy_gpu(rank, evidence):
        return Works(at, "gpu")
    helper = next((child for child in rank.children if child.kind == "child" and moving(child)), None)
    return Works(at, "child", child=Child(helper.pid, helper.command)) if helper is not None else Works(at)


def _phase(rank: RankEvidence) -> Phase:
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    if any(frame.file.startswith("<frozen importlib") for frame in frames) and not _past_import(frames):
        return "importing"
    for phase, modules, functions in _PHASES:
        if any(
            in_module(frame, module, functions) or _in_part(frame, module) for frame in frames for module in modules
        ):
            return phase
    return ""


def _write_rate(rank: RankEvidence) -> float:
    if len(rank.processes) < 2:
        return 0.0
    first, last = rank.processes[0], rank.processes[-1]
    return (last.write_bytes - first.write_bytes) / (last.at - first.at) if last.at > first.at else 0.0


def _in_part(frame: Frame, module: str) -> bool:
    """For a path that ends neither in a folder nor in a file, such as `transformers/tokenization`."""
    return not module.endswith(("/", ".py")) and not frame.user and f"/{module}" in frame.file


def _past_import(frames: tuple[Frame, ...]) -> bool:
    """A module's own long work at import, with user functions inside, is work and not importing."""
    inner = above_user(frames)
    user = next((frame for frame in frames if frame.user), None)
    return user is not None and user.function != "<module>" and not any("importlib" in frame.file for frame in inner)
