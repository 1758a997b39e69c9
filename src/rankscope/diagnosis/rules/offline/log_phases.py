"""What the last lines of a log speak of, and what may keep a job that says nothing more after them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.nothing_found import MayStand, Phase
from rankscope.diagnosis.finding import Possibility
from rankscope.evidence.model import Log

_LINES = 6
"""So many of the last lines are looked at, the last first: some say nothing, as a picture made of dashes."""

_WORDS: tuple[tuple[Phase, str], ...] = (
    ("stage", r"\babout to (?:call|start) |\bstill in \S"),
    ("barrier", r"\bbarrier\b(?! (?:passed|done|reached by all|complete))|\bsynchroni[sz]ing\b"),
    ("forward", r"\bforward\b|moved to (?:the )?(?:device|gpu|cuda)|\bbackward\b"),
    ("batch", r"first (?:training )?(?:batch|step)|barrier passed|training (?:to|loop|epoch)|moving data"),
    ("batch", r"(?:start|enter|begin)\w* (?:the )?train|\bepoch:? ?[\[(]?0\b"),
    ("evaluate", r"\bevaluat|\bvalidat"),
    ("save", r"\bsav(?:e|ing)\b|writing (?:the )?checkpoint"),
    ("init", r"init_process_group|rendezvous|\brdzv\b|MASTER_ADDR"),
    ("init", r"initiali[sz]\w* (?:the )?(?:distributed|process group|nccl|gloo)"),
    ("logger", r"\bwandb\b|\bmlflow\b|\btensorboard\b|\blogger\b"),
    ("model", r"\bfsdp\b|DistributedDataParallel|\bddp\b"),
    ("model", r"(?:load|creat|build|wrap|compil)\w* (?:the )?(?:\w+ )?(?:model|weights|checkpoint)"),
    ("data", r"\bdata ?(?:set|loader)?s?\b|\btokeni[sz]|\bdownload|from_pretrained|\bcach(?:e|ing)\b"),
    ("step", r"\b(?:step|iter(?:ation)?|loss|it/s|s/it|lr)\b"),
)
_PHASES = tuple((phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in _WORDS)
"""The first that fits a line counts."""

_CAUSES: dict[Phase, tuple[str, ...]] = {
    "init": ("rank-missing", "address-unreachable", "blocked-call", "killed"),
    "barrier": ("collective-skipped", "slow-rank", "blocked-call", "killed"),
    "forward": ("collective-skipped", "comm-error", "slow-rank", "gpu-stuck", "killed", "dataloader-stuck"),
    "batch": ("collective-skipped", "comm-error", "dataloader-stuck", "slow-rank", "gpu-stuck", "killed"),
    "evaluate": ("collective-skipped", "uneven-data", "slow-rank", "killed"),
    "save": ("slow-rank", "collective-skipped", "blocked-call", "killed"),
    "model": ("collective-skipped", "slow-rank", "blocked-call", "killed"),
    "data": ("blocked-call", "lock-wait", "dataloader-stuck", "slow-rank", "killed"),
    "logger": ("blocked-call", "lock-wait", "killed"),
    "step": ("collective-skipped", "dataloader-stuck", "blocked-call", "gpu-stuck", "killed"),
    "stage": ("blocked-call", "collective-skipped", "lock-wait", "slow-rank", "killed"),
    "unknown": ("collective-skipped", "blocked-call", "slow-rank", "killed"),
}
"""The most likely first."""

_CONFIRM: dict[str, Advice] = {
    "collective-skipped": Advice("let-torch-dump"),
    "slow-rank": Advice("watch-it-longer"),
    "gpu-stuck": Advice("look-at-gpus"),
    "killed": Advice("kernel-log"),
    "dataloader-stuck": Advice("without-loader-workers"),
    "blocked-call": Advice("look-inside"),
    "lock-wait": Advice("look-for-locks"),
    "rank-missing": Advice("count-started-ranks"),
    "address-unreachable": Advice("check-the-network"),
    "uneven-data": Advice("count-batches"),
    "comm-error": Advice("nccl-debug-and-fp32"),
}


def phase_of(log: Log) -> Phase:
    """By the newest of the last lines that speaks of something known."""
    lines = [text for text in reversed(log.tail) if text.strip()][:_LINES]
    return next((phase for text in lines for phase, pattern in _PHASES if pattern.search(text)), "unknown")


_FSDP = re.compile(r"\bfsdp\b|FullyShardedDataParallel|fully_shard", re.IGNORECASE)
FIRST_GATHER = ("pytorch/pytorch#109173", "pytorch/pytorch#95118")
"""FSDP that stands in its first forward pass: the gathering and its time limit, and mixed precision."""


def references_of(phase: Phase, logs: Iterable[Log]) -> tuple[str, ...]:
    """Known issues of a job that stands there, with what its log says it uses."""
    sharded = any(_FSDP.search(text) for log in logs for text in log.tail)
    return FIRST_GATHER if phase in ("forward", "batch") and sharded else ()


def what_may_keep_it(phase: Phase) -> tuple[Possibility, ...]:
    """The most likely first, each with the step that would confirm it."""
    return tuple(Possibility(cause, "possible", MayStand(cause, phase), _CONFIRM[cause]) for cause in _CAUSES[phase])
