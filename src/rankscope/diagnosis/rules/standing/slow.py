"""A rank that is alive and at work while the others wait: not a hang, but the rank to look at."""

from __future__ import annotations

from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import above_user, in_module
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.views import current_where, moving, newest_main_thread, place
from rankscope.evidence.model import Frame, RankEvidence

_WRITES_MUCH_BYTES_PER_S = 1_000_000

_PHASES: tuple[tuple[str, tuple[str, ...], frozenset[str] | None], ...] = (
    (
        "compiling",
        (
            "torch/_dynamo/",
            "torch/_inductor/",
            "torch/_functorch/",
            "triton/compiler/",
            "torch/utils/cpp_extension.py",
        ),
        None,
    ),
    ("saving a checkpoint", ("torch/serialization.py",), frozenset({"save", "_save", "_legacy_save"})),
    (
        "loading a checkpoint",
        ("torch/serialization.py",),
        frozenset({"load", "_load", "_legacy_load", "persistent_load"}),
    ),
    ("saving or loading a checkpoint", ("torch/distributed/checkpoint/", "safetensors/"), None),
    ("loading data", ("torch/utils/data/",), None),
    ("tokenising or preprocessing data", ("datasets/", "tokenizers/", "transformers/tokenization"), None),
)

_FIXES = {
    "compiling": (
        "compile before the first collective with a time limit, or share the compile cache between ranks",
        "raise the process group's timeout for the first steps",
    ),
    "saving a checkpoint": (
        "save with all ranks (torch.distributed.checkpoint), or asynchronously",
        "raise the process group's timeout above the time that a save takes",
    ),
    "tokenising or preprocessing data": (
        "prepare the data before the job, so that ranks only read it",
        "raise the process group's timeout above the time that the preparation takes",
    ),
    "importing": ("imports from a slow or shared file system: put the environment on a local disk",),
}
_GENERAL_FIX = (
    "let it work: it is alive. Raise the process group's timeout if this phase is expected to be long",
    "split the work among the ranks, or do it before the first collective",
)


def at_work(rank: RankEvidence, *, on_gpu: bool = False) -> Stand:
    """What a living rank is busy with; `on_gpu`: it waits for its GPU, which works."""
    at = current_where(rank)
    phase = _phase(rank) or ("waiting for its GPU, which works," if on_gpu else None)
    helper = next((child for child in rank.children if child.kind == "child" and moving(child)), None)
    if phase is None and helper is not None:
        phase = f"waiting for its child process {helper.pid} ({helper.command[:60]}), which works,"
    doing = f"{phase} in {place(at)}" if phase else f"working in {place(at)}"
    stage: tuple[str, ...] = ()
    if rank.progress is not None and rank.progress.stage:
        stage = (f"its stage is {rank.progress.stage!r}, step {rank.progress.steps}",)
    return Stand(
        cause="slow-rank",
        at=at,
        doing=doing,
        because=(*movement(rank), *stage),
        fix=_FIXES.get(phase or "", _GENERAL_FIX),
        alternatives=(Possibility("gpu-stuck", "possible", "a kernel that never ends keeps a GPU busy too"),)
        if on_gpu
        else (),
        summary=f"rank {rank.rank} is {doing}",
        certainty="likely",
        outcome="slow",
    )


def _phase(rank: RankEvidence) -> str | None:
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    if any(frame.file.startswith("<frozen importlib") for frame in frames) and not _past_import(frames):
        return "importing"
    for words, modules, functions in _PHASES:
        if any(
            in_module(frame, module, functions) or _in_part(frame, module) for frame in frames for module in modules
        ):
            return words
    first, last = (rank.processes[0], rank.processes[-1]) if len(rank.processes) > 1 else (None, None)
    if first is not None and last is not None and last.at > first.at:
        rate = (last.write_bytes - first.write_bytes) / (last.at - first.at)
        if rate >= _WRITES_MUCH_BYTES_PER_S:
            return f"writing {rate / 1e6:.0f} MB/s"
    return None


def _in_part(frame: Frame, module: str) -> bool:
    """For a path that ends neither in a folder nor in a file, such as `transformers/tokenization`."""
    return not module.endswith(("/", ".py")) and not frame.user and f"/{module}" in frame.file


def _past_import(frames: tuple[Frame, ...]) -> bool:
    """A module's own long work at import, with user functions inside, is work and not importing."""
    inner = above_user(frames)
    user = next((frame for frame in frames if frame.user), None)
    return user is not None and user.function != "<module>" and not any("importlib" in frame.file for frame in inner)
