"""The weights of a checkpoint as safetensors files, which every other tool reads. Needs one process and no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from rankscope.errors import RankscopeError, UsageError
from rankscope.train.state import manifest as manifests
from rankscope.train.state import tensors
from rankscope.train.state.directory import newest
from rankscope.train.state.manifest import Found, TensorForm
from rankscope.train.state.reading import read_tensors

LARGEST_FILE = 5_000_000_000
"""Bytes of one file; a larger model is written as several, with an index as the Hugging Face libraries expect it."""


def export(
    checkpoint: Path,
    to: Path,
    *,
    say: Callable[[str], None],
    dtype: str | None = None,
    largest_file: int = LARGEST_FILE,
) -> list[Path]:
    """Writes the model's weights into the folder `to`; returns the files. Only one file's tensors are in memory at a
    time. `checkpoint` is one checkpoint's folder, or a directory of them, of which the newest is taken; `dtype`
    converts floating point weights ("bfloat16")."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise UsageError("exporting needs safetensors: pip install 'rankscope[train]'") from None
    found = _found(checkpoint)
    target = _dtype(dtype)
    parts = list(_parts(found.manifest.parameters, largest_file))
    described = {"format": "pt", "step": str(found.manifest.step)}
    written: list[Path] = []
    index: dict[str, str] = {}
    total = 0
    try:
        to.mkdir(parents=True, exist_ok=True)
        for number, names in enumerate(parts, start=1):
            content = {name: tensors.empty(found.manifest.parameters[name]) for name in names}
            read_tensors(found.folder, {f"model.{name}": tensor for name, tensor in content.items()})
            if target is not None:
                content = {
                    name: tensor.to(target) if tensor.is_floating_point() else tensor
                    for name, tensor in content.items()
                }
            file = to / (
                "model.safetensors" if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
            )
            unfinished = file.with_name(f".{file.name}.partial")
            try:
                save_file(content, unfinished, metadata=described)
                unfinished.replace(file)
            finally:
                unfinished.unlink(missing_ok=True)
            written.append(file)
            index.update(dict.fromkeys(names, file.name))
            total += sum(tensor.nbytes for tensor in content.values())
        if len(parts) > 1:
            written.append(_write_index(to, index, total))
    except OSError as error:
        raise RankscopeError(f"the weights could not be exported to '{to}': {error.strerror or error}") from error
    except Exception as error:
        if type(error).__name__ == "SafetensorError":  # what the library raises for a full disk, among others
            raise RankscopeError(f"the weights could not be exported to '{to}': {error}") from error
        raise
    say(f"weights of step {found.manifest.step} exported: {', '.join(map(str, written))} ({total / 1e6:.1f} MB)")
    return written


def _found(checkpoint: Path) -> Found:
    seen = manifests.read(checkpoint)
    if isinstance(seen, Found):
        return seen
    last, _ = newest(checkpoint)
    if last is None:
        raise UsageError(f"no complete checkpoint to export in '{checkpoint}': {seen}")
    return last


def _parts(forms: Mapping[str, TensorForm], largest: int) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, form in forms.items():
        bytes_of_it = tensors.empty(TensorForm((), form.dtype)).element_size()
        for dimension in form.shape:
            bytes_of_it *= dimension
        if part and size + bytes_of_it > largest:
            yield part
            part, size = [], 0
        part.append(name)
        size += bytes_of_it
    if part:
        yield part


def _write_index(folder: Path, index: Mapping[str, str], total: int) -> Path:
    file = folder / "model.safetensors.index.json"
    unfinished = file.with_name(f".{file.name}.partial")
    unfinished.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": dict(index)}, indent=2))
    os.replace(unfinished, file)
    return file


def _dtype(name: str | None) -> torch.dtype | None:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name is None:
        return None
    if name not in known:
        raise UsageError(f"weights cannot be exported as '{name}'; write one of {', '.join(known)}")
    return known[name]
