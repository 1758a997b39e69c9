"""`check imports`: heavy libraries one by one, each in its own process, with time and memory."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.checks.child import Ended, run_child
from rankscope.checks.model import Findings, Flaw
from rankscope.checks.sizes import size_text
from rankscope.errors import UsageError
from rankscope.evidence.kernel import memory

HEAVY = (
    *("torch", "numpy", "torchvision", "torchaudio", "triton", "transformers", "datasets", "tokenizers", "accelerate"),
    *("lightning", "pytorch_lightning", "deepspeed", "flash_attn", "bitsandbytes", "xformers", "apex", "peft", "trl"),
    *("tensorflow", "jax", "wandb", "tensorboard", "mlflow"),
)
LIMIT_S = 60.0
MOST_SHARE = 0.5
"""Of the memory that is available now: several ranks import at the same time."""


@dataclass(frozen=True, slots=True)
class ImportLimits:
    seconds: float = LIMIT_S
    bytes: int | None = None
    """None: half of what is available, at most 16 GiB."""
    total_s: float | None = None
    """Modules that are not begun by then are named as not tried."""


def installed_heavy() -> list[str]:
    """Those of the well-known heavy libraries that this Python has."""
    return [name for name in HEAVY if _spec(name)]


def imported_by(script: Path) -> list[str]:
    """The top-level modules that a script imports at any place, without the standard library and its own files."""
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except OSError as error:
        raise UsageError(f"the script '{script}' cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"the script '{script}' is not valid Python: {error}") from error
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names[node.module] = None
    optional = _guarded(tree)
    beside = {path.stem for path in script.parent.glob("*.py")} | {path.name for path in script.parent.glob("*/")}
    tops = dict.fromkeys(name.partition(".")[0] for name in names if name not in optional)
    return [name for name in tops if name not in sys.stdlib_module_names and name not in beside]


def _guarded(tree: ast.AST) -> set[str]:
    """Imports inside `try:` with a handler: the program has an answer to their absence."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            for inner in node.body:
                if isinstance(inner, ast.Import):
                    found |= {alias.name for alias in inner.names}
                elif isinstance(inner, ast.ImportFrom) and inner.module:
                    found.add(inner.module)
    return found


def check_imports(modules: Sequence[str], limits: ImportLimits, folder: Path | None = None) -> Findings:
    """`folder` is put first on the path, as Python does for a script in it."""
    if not modules:
        return Findings(skipped="none of the well-known heavy libraries is installed; name some with --modules")
    most = limits.bytes if limits.bytes is not None else min(int(memory()[1] * MOST_SHARE), 16 << 30)
    begun = time.monotonic()
    flaws: list[Flaw] = []
    facts: list[str] = []
    left: list[str] = []
    for name in modules:
        spent = time.monotonic() - begun
        if limits.total_s is not None and spent > limits.total_s - 1.0:
            left.append(name)
            continue
        seconds = limits.seconds if limits.total_s is None else min(limits.seconds, limits.total_s - spent)
        path = f"import sys; sys.path.insert(0, {str(folder)!r}); " if folder is not None else ""
        ended = run_child(["-c", f"{path}import {name}"], limit_s=seconds, limit_bytes=most)
        if ended.over == "time" and seconds < limits.seconds:
            left.append(name)
            continue
        flaw = _flaw(name, ended, limits.seconds, most)
        if flaw is not None:
            flaws.append(flaw)
        else:
            facts.append(f"{name}: {ended.seconds:.1f} s, {size_text(ended.peak_bytes)}")
    if left:
        facts.append(f"not tried to the end for lack of time: {', '.join(left)} (rankscope check imports tries all)")
    return Findings(flaws=tuple(flaws), facts=tuple(facts))


def _flaw(name: str, ended: Ended, limit_s: float, limit_bytes: int) -> Flaw | None:
    if ended.over == "memory":
        return Flaw(
            "out-of-memory-host",
            f"importing {name} took more than {size_text(limit_bytes)} of memory and was stopped after "
            f"{ended.seconds:.1f} s; every rank would take as much at the same time",
            f"update or remove {name}; where it compiles kernels at import, build them once beforehand",
        )
    if ended.over == "time":
        return Flaw(
            "blocked-call",
            f"importing {name} did not end within {limit_s:g} s ({size_text(ended.peak_bytes)} of memory)",
            f"see where it stands: py-spy dump, or python -X importtime -c 'import {name}'",
        )
    if ended.code == 0:
        return None
    if f"No module named '{name}'" in ended.err:
        return Flaw("import-failed", f"the package {name} is missing from {sys.prefix}", f"pip install {name}")
    if ended.code is not None and ended.code < 0:
        return Flaw(
            "native-crash",
            f"importing {name} killed the process with signal {-ended.code}",
            f"reinstall {name} for this torch and this driver",
        )
    return Flaw(
        "import-failed",
        f"importing {name} fails: {ended.last_words or f'exit code {ended.code}'}",
        f"run python -c 'import {name}' for the whole traceback",
    )


def _spec(name: str) -> bool:
    try:
        return importlib.machinery.PathFinder.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
