"""Versions of what a job runs on, without importing any of it."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from rankscope import __version__


def versions() -> dict[str, str]:
    found = {"rankscope": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for package in (
        "torch",
        "nvidia-nccl-cu12",
        "nvidia-nccl-cu13",
        "lightning",
        "accelerate",
        "transformers",
    ):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["executable"] = sys.executable
    return found
