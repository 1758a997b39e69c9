"""Whose code a file is, by the text of its path alone: the user's own, or a library's, or Rankscope's.

The probe, the collectors and the readers of other people's files all ask here, so that a frame is the user's for all
of them or for none. No file is looked at and nothing of this machine is asked: a path in a log of last month is judged
like one of this process. Only the standard library, and little of it: this is imported into every process of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

_INSTALLED = re.compile(
    r"(?:^|/)(?:"
    r"(?:site|dist)-packages/"  # virtual environments, conda, Debian, shiv, Bazel, Nix
    r"|lib(?:64)?/(?:python|pypy)\d[\d.]*t?/"  # the standard library, of free-threaded Pythons too
    r"|python\d+\.zip/"  # the same in one file
    r"|Python\d+/Lib/"  # the same on Windows
    r"|[^/]+\.(?:whl|egg)/|\.deps/|installed_wheels/|\.bootstrap/|__pex__/"  # what a pex carries beside the program
    r"|torchinductor_[^/]*/|torch_compile_debug/"  # written by the compiler
    r"|huggingface/modules/|torch/hub/[^/]+_[^/]+/"  # downloaded with a model
    r")"
)
# A checkout of torch is nobody's training script, although `pip install -e` puts it where the user's own code lies.
_TORCH = re.compile(
    r"(?:^|/)torch/(?:distributed|nn|optim|autograd|cuda|fx|func|jit|amp|multiprocessing|profiler|compiler|export|testing"
    r"|utils/(?:data|checkpoint\.py|hooks\.py|_)|_\w+(?:/|\.py$)|(?:functional|serialization|storage|overrides|library)\.py$)"
)
_RANKSCOPE = re.compile(
    r"(?:^|/)(?:(?:src|site-packages|dist-packages)/rankscope/"
    r"|rankscope/(?:checks|clusters|commands|diagnosis|distributed|evidence|launch|probe|report|train)/)"
)
_TRAINER = re.compile(r"(?:^|/)rankscope/train/")
_NOTEBOOK = ("<ipython-input-", "<command-")
"""Cells of IPython and of Databricks; newer kernels give each cell a file under /tmp, which is as good as any other."""
_CYTHON = (".pyx", ".pxd", ".pxi")
# What an installer writes for `[project.scripts]`: two lines that call a package.
_CONSOLE_SCRIPT = re.compile(
    r"(?:^/usr(?:/local)?|/\.local|/(?:mini|ana|micro|mamba)?(?:conda|forge|mamba)\d?|/envs/[^/]+|/\.?v?env[^/]*)/s?bin/[^/.]+$"
)
_PACKAGE = re.compile(r"^(?P<folder>.*?(?:^|/)(?:site|dist)-packages/)(?P<name>[^/]+?)(?P<module>\.py)?(?=/|$)")
_RUNNER_NAMES = (
    "torch torchrun accelerate deepspeed horovod colossalai composer lightning lightning_fabric pytorch_lightning ray "
    "dask distributed mpi4py submitit debugpy pydevd ipykernel ipykernel_launcher IPython jupyter_core pytest _pytest "
    "coverage scalene memray viztracer line_profiler kernprof pyinstrument streamlit uv poetry"
)
_RUNNERS = frozenset(_RUNNER_NAMES.split())
"""They run somebody else's script, or wait for orders: what they run is the program, not they."""


@lru_cache(maxsize=4096)
def is_user_file(path: str, program: tuple[str, ...] = ()) -> bool:
    """Whether a file is the user's own: neither the standard library, nor installed, nor generated, nor Rankscope.

    What was installed with `pip install -e` lies among the user's files and is the user's. `program` is where the
    program itself lies if it was installed like a library (see `program_of`); its files are the user's too.
    """
    path = path.replace("\\", "/")
    if path.startswith("<") or not path:
        return path.startswith(_NOTEBOOK)
    if _RANKSCOPE.search(path):
        return bool(program) and path.startswith(program) and _TRAINER.search(path) is not None
    if program and path.startswith(program):
        return True
    if path.endswith(_CYTHON) and not path.startswith("/"):
        return False  # named after a folder on the machine that built the package
    return not (_INSTALLED.search(path) or _TORCH.search(path) or _CONSOLE_SCRIPT.search(path))


def absolute(path: str, folder: str) -> str:
    """The path of a file that a frame names, as seen from the folder in which the program was started."""
    if not path or path.startswith(("/", "<")) or path.endswith(_CYTHON):
        return path
    return os.path.normpath(os.path.join(folder, path))


def program_of(main_file: str) -> tuple[str, ...]:
    """Where the installed package lies that holds the file of `__main__`; empty where that is no installed one, or
    where the package is known to run other people's scripts."""
    path = main_file.replace("\\", "/")
    if _TRAINER.search(path):
        return (path[: path.rindex("rankscope/train/")] + "rankscope/train/",)
    found = _PACKAGE.match(path)
    if found is None or found["name"] in _RUNNERS or found["name"] == "rankscope":
        return ()
    return (found.group() if found["module"] else found.group() + "/",)


def program_in_stack(frames: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """`program_of` for a whole stack, given as (file, function) from the outermost frame inwards.

    The outermost module is the one that was started, or the two lines of a console script, which then call the package.
    Empty where any frame is the user's as it is: then some package runs the user's script.
    """
    seen = list(frames)
    if any(is_user_file(file) for file, _ in seen):
        return ()
    for at, (file, function) in enumerate(seen):
        if function != "<module>" or file.startswith("<"):
            continue
        if _CONSOLE_SCRIPT.search(file):
            return program_of(seen[at + 1][0]) if at + 1 < len(seen) else ()
        return program_of(file)
    return ()
