"""The files of a step that was not finite: one to repeat it from, and its tensors for numpy and for safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from rankscope.errors import UsageError
from rankscope.train.forensics.findings import Incident, from_plain, to_plain
from rankscope.train.forensics.watch import KeptStep

SCHEMA = 1
LARGEST = 16 << 30
"""Bytes of parameters and gradients up to which all are written; above it only those that are not finite."""


@dataclass(frozen=True, slots=True)
class SavedBatch:
    inputs: Tensor
    targets: Tensor
    sample_ids: Tensor


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A step that can be repeated."""

    incident: Incident
    context: dict[str, Any]
    """What the loop needs to build the model again."""
    parameters: dict[str, Tensor]
    batches: list[SavedBatch]
    kept: KeptStep


def paths(directory: Path, step: int) -> tuple[Path, Path, Path]:
    """Of the step itself, and of its tensors as pickle and as safetensors."""
    debug = directory / "debug"
    stem = f"nan_debug_step_{step}"
    return directory / f"nan_grad_step_{step}.pt", debug / f"{stem}.pkl", debug / f"{stem}.safetensors"


def write(
    directory: Path,
    incident: Incident,
    kept: KeptStep,
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    context: Mapping[str, Any],
) -> list[str]:
    """Writes the three files; returns what to say about each. A file that cannot be written is said, never raised."""
    step_file, pickle_file, safetensors_file = paths(directory, incident.step)
    bytes_of_all = sum(tensor.nbytes for tensor in (*parameters.values(), *gradients.values()))
    whole = bytes_of_all <= LARGEST
    shown_parameters = dict(parameters) if whole else _bad_only(parameters)
    shown_gradients = dict(gradients) if whole else _bad_only(gradients)
    summary = {"step": incident.step, "incident": to_plain(incident)}
    tasks: list[tuple[str, Path, Callable[[IO[bytes]], None]]] = [
        ("Checkpoint", step_file, lambda file: torch.save(_step(incident, kept, parameters, context, whole), file)),
        (
            "Debug tensors",
            pickle_file,
            lambda file: pickle.dump(_arrays(summary, shown_parameters, shown_gradients), file, protocol=4),
        ),
        (
            "Debug tensors",
            safetensors_file,
            lambda file: _write_safetensors(file, summary, shown_parameters, shown_gradients),
        ),
    ]
    lines = [_written(what, path, task) for what, path, task in tasks]
    if whole and lines[0].startswith("Checkpoint saved"):
        lines.append(f"Run that step again: rankscope train --replay-nan {step_file}")
    if not whole:
        lines.append(
            f"Only tensors that are not finite were saved, because all of them are {bytes_of_all / 1e9:.0f} GB."
        )
    return lines


def read_step(path: Path) -> SavedStep:
    """What `rankscope train --replay-nan FILE` needs; nothing in the file is run."""
    if not path.is_file():
        raise UsageError(f"there is no file '{path}'")
    if not zipfile.is_zipfile(path):
        raise UsageError(f"'{path}' cannot be read as a saved step: give a file .checkpoints/nan_grad_step_N.pt")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as error:
        raise UsageError(f"'{path}' cannot be read as a saved step: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or "batches" not in content:
        raise UsageError(f"'{path}' is not a saved step: give a file .checkpoints/nan_grad_step_N.pt")
    if not content["model"]:
        raise UsageError(f"'{path}' holds no weights, because the model was too large: the step cannot be repeated")
    incident = from_plain(json.loads(content["incident"]))
    batches = [SavedBatch(**batch) for batch in content["batches"]]
    kept = KeptStep(incident.step, content["random_state"], content["cuda_random_state"])
    kept.batches.extend(batches)
    return SavedStep(incident, json.loads(content["context"]), content["model"], batches, kept)


def read_arrays(path: Path) -> dict[str, Any]:
    """The pickled tensors, read without running anything but numpy's own constructors."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file).load()
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}'") from None
    except (OSError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read as saved tensors: {error}") from error
    if not isinstance(content, dict) or not {"parameters", "gradients"} <= content.keys():
        raise UsageError(f"'{path}' has no parameters and gradients: give a file nan_debug_step_N.pkl")
    return content


class _ArraysOnly(pickle.Unpickler):
    _ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "_frombuffer"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _step(
    incident: Incident, kept: KeptStep, parameters: Mapping[str, Tensor], context: Mapping[str, Any], whole: bool
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "step": incident.step,
        "rank": incident.shown.rank,
        "loss": incident.shown.loss_then,
        "grad_norm": incident.grad_norm,
        "incident": json.dumps(to_plain(incident)),
        "context": json.dumps(dict(context)),
        "model": dict(parameters) if whole else {},
        "batches": [
            {"inputs": batch.inputs.cpu(), "targets": batch.targets.cpu(), "sample_ids": batch.sample_ids.cpu()}
            for batch in kept.batches
        ],
        "random_state": kept.random_state,
        "cuda_random_state": kept.cuda_random_state,
    }


def _arrays(
    summary: Mapping[str, Any], parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, Any]:
    return {
        **summary,
        "parameters": {name: _array(tensor) for name, tensor in parameters.items()},
        "gradients": {name: _array(tensor) for name, tensor in gradients.items()},
    }


def _array(tensor: Tensor) -> Any:
    # numpy knows no bfloat16; every bfloat16 is a float32.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().numpy()


def _write_safetensors(
    file: IO[bytes], summary: Mapping[str, Any], parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> None:
    from safetensors.torch import save

    named = {f"parameters.{name}": tensor.contiguous() for name, tensor in parameters.items()}
    named.update({f"gradients.{name}": tensor.contiguous() for name, tensor in gradients.items()})
    file.write(save(named, metadata={key: json.dumps(value) for key, value in summary.items()}))


def _bad_only(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())}


def _written(what: str, path: Path, task: Callable[[IO[bytes]], None]) -> str:
    """Under another name first: a file of that name is whole."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            task(file)
        unfinished.replace(path)
    except ImportError as error:
        return f"{what} not saved: {path} (needs {error.name}: pip install 'rankscope[train]')"
    except (OSError, RuntimeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error).splitlines()[0]
        return f"{what} not saved: {path} ({reason})"
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return f"{what} saved: {path}"
