"""What to rent and what to run there. Plain values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = "/workspace/rankscope"
OWN = "own"
"""Folder in it with this package."""
IMAGE = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """What an offer must have; the cheapest that has it is taken."""

    num_gpus: int
    gpu: str | None = None
    """As Vast names it, spaces as underscores: RTX_4090, H100_SXM."""
    max_price: float | None = None
    """Dollars an hour, for the whole machine."""
    min_reliability: float = 0.98
    disk_gb: float = 64.0
    more: tuple[str, ...] = ()
    """Further conditions in Vast's own words: cuda_vers>=12.8."""


@dataclass(frozen=True, slots=True)
class VastPlan:
    offer: OfferLimits
    command: tuple[str, ...]
    """What stands after `python3 -m rankscope`: run or train, with all their options."""
    name: str
    workdir: Path
    image: str = IMAGE
    setup: str = ""
    """Shell lines that run in the work folder before the job."""
    auto_shutdown: bool = False
    folder: str = FOLDER
    """On the rented machine; everything of this run is under it."""
    start_limit_s: float = 1800.0
    """How long the machine may take until the job has started."""
    fetch_limit_s: float = 1800.0
    """How long a machine that destroys itself waits, after the end, for whoever wants its results."""


def offer_query(limits: OfferLimits) -> str:
    """The search in the words of `vastai search offers`."""
    words = [f"num_gpus={limits.num_gpus}"]
    if limits.gpu is not None:
        words.append(f"gpu_name={limits.gpu.replace(' ', '_')}")
    if limits.max_price is not None:
        words.append(f"dph_total<={limits.max_price:g}")
    words += [f"reliability>={limits.min_reliability:g}", f"disk_space>={limits.disk_gb:g}", *limits.more]
    return " ".join(words)
