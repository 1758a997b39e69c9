"""Kernels written in Triton, for the loss, SwiGLU, norms, rotary positions and sums of gradients."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def has_own_kernels(device: torch.device) -> bool:
    """They are for NVIDIA's GPUs; anywhere else plain or compiled torch does the same."""
    return device.type == "cuda" and torch.version.hip is None and find_spec("triton") is not None
