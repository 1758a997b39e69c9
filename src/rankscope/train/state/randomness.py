"""The random number generators of one rank, as text and back."""

from __future__ import annotations

import base64
import json
import random
import sys
from typing import Any

import torch


def captured() -> bytes:
    """The state of every generator of this process: Python's, torch's, the current GPU's, numpy's where it is used."""
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {"python": [version, list(numbers), gauss], "torch": _text(torch.get_rng_state())}
    if torch.cuda.is_available():
        states["cuda"] = _text(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        import numpy

        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        states["numpy"] = [name, [int(key) for key in keys], position, has_gauss, cached]
    return json.dumps(states).encode()


def restore(content: bytes) -> None:
    """Puts every generator back to where it was; one that this process lacks is left out."""
    states = json.loads(content)
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(_tensor(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(states["cuda"]))
    if "numpy" in states:
        try:
            import numpy
        except ImportError:
            return
        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.cpu().tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
