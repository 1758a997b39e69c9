"""What makes a folder a checkpoint: a manifest, written last, that lists every file with its size. Needs no torch."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SCHEMA = 1
_NAME = re.compile(r"step_(\d{8,})")


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Shape and element type of a whole tensor, however many ranks hold parts of it."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) or "a single number"


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    """Optimizer steps made."""
    world_size: int
    """Ranks that saved it."""
    parameters: dict[str, TensorForm]
    """Of the model, persistent buffers included."""
    optimizer: dict[str, dict[str, TensorForm]]
    """Per parameter, the tensors that the optimizer keeps for it; empty before the first step."""
    loader: dict[str, Any]
    """Where the data stood."""
    extra: dict[str, Any]
    """What else the loop wanted to have back."""
    saved_at: float
    torch: str
    files: dict[str, int]
    """Every other file of the folder, with its size in bytes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A complete checkpoint on disk."""

    folder: Path
    manifest: Manifest


def folder_name(step: int) -> str:
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name tells; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def write(folder: Path, manifest: Manifest) -> None:
    """Writes it and waits until the disk has it."""
    content = json.dumps({"schema": SCHEMA, **asdict(manifest)}, indent=1)
    with (folder / MANIFEST).open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sizes(folder: Path) -> dict[str, int]:
    """Every file of the folder beside the manifest → its size."""
    return {
        path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MANIFEST and path.is_file()
    }


def read(folder: Path) -> Found | str:
    """The checkpoint in the folder, or why there is none."""
    try:
        content = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return "it was never completed (no manifest.json)"
    except (OSError, ValueError) as error:
        return f"its manifest.json cannot be read ({error})"
    try:
        manifest = _decoded(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its manifest.json is not of this form ({type(error).__name__}: {error})"
    there = sizes(folder)
    for name, size in manifest.files.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]:,} bytes instead of {size:,}"
    return Found(folder, manifest)


def complete(directory: Path) -> tuple[list[Found], dict[Path, str]]:
    """All complete checkpoints of a directory, oldest step first; and the others, with what is wrong with them."""
    if not directory.is_dir():
        return [], {}
    found, wrong = [], {}
    named = [(step, path) for path in directory.iterdir() if (step := step_of(path.name)) is not None]
    for _, path in sorted(named):
        seen = read(path)
        if isinstance(seen, Found):
            found.append(seen)
        else:
            wrong[path] = seen
    return found, wrong


def difference(saved: Mapping[str, TensorForm], here: Mapping[str, TensorForm]) -> str | None:
    """In a few words, how the model in a checkpoint differs from the one at hand; None where it does not."""
    words = [
        f"{name} is {saved[name]} there and {form} here"
        for name, form in here.items()
        if name in saved and saved[name].shape != form.shape
    ]
    words += [f"{name} is not in it" for name in here if name not in saved]
    words += [f"{name} of it is not in this model" for name in saved if name not in here]
    if not words:
        return None
    return words[0] if len(words) == 1 else f"{words[0]}, and {len(words) - 1} more differ"


def refusal(found: Found, here: Mapping[str, TensorForm]) -> str | None:
    """Why this model cannot go on from that checkpoint, in one line; None where it can."""
    different = difference(found.manifest.parameters, here)
    if different is None:
        return None
    return (
        f"{found.folder} is a checkpoint of another model: {different}. Use the configuration it was made with, "
        "another checkpoint.dir, or checkpoint.resume=no"
    )


def bytes_of_a_checkpoint(here: Mapping[str, TensorForm]) -> int:
    """Weights, and as much twice again for an optimizer of Adam's kind; taken as fp32, as masters are."""
    return 12 * sum(math.prod(form.shape) for form in here.values())


def _decoded(content: Any) -> Manifest:
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']}, and only {SCHEMA} is known")
    return Manifest(
        step=int(content["step"]),
        world_size=int(content["world_size"]),
        parameters=_forms(content["parameters"]),
        optimizer={str(name): _forms(forms) for name, forms in content["optimizer"].items()},
        loader=dict(content["loader"]),
        extra=dict(content["extra"]),
        saved_at=float(content["saved_at"]),
        torch=str(content["torch"]),
        files={str(name): int(size) for name, size in content["files"].items()},
    )


def _forms(content: Any) -> dict[str, TensorForm]:
    return {
        str(name): TensorForm(tuple(int(size) for size in form["shape"]), str(form["dtype"]))
        for name, form in content.items()
    }
