"""Compiles the probe's shortcuts (src/rankscope/probe/native) as the package is built or installed.

They make the probe cheaper on steps of a few milliseconds and nothing else: where there is no compiler, or no header of
Python, the package is built without them, and says so.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROBE = Path("src", "rankscope", "probe")
SOURCE = PROBE / "native" / "quick.c"


class CompileShortcuts(BuildHookInterface[Any]):
    """Hatchling calls this for wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's
        built = build(Path(self.root))
        if built is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(built.relative_to(self.root).as_posix())


def build(root: Path) -> Path | None:
    """The compiled module, in place; None where it cannot be made."""
    if not sys.platform.startswith("linux") or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    target = root / PROBE / f"_quick{sysconfig.get_config_var('EXT_SUFFIX')}"
    new = target.with_name(f"{target.name}.{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    paths = sysconfig.get_paths()
    headers = [f"-I{paths[name]}" for name in ("include", "platinclude")]
    command = [*compiler, "-O2", "-fPIC", "-shared", "-pthread", "-Wall", *headers, str(root / SOURCE), "-o", str(new)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        _say_without(f"{compiler[0]}: {error.strerror}")
        return None
    if done.returncode != 0:
        new.unlink(missing_ok=True)
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        _say_without(next((line for line in lines if "error" in line), lines[0]))
        return None
    new.replace(target)  # whole at any time: jobs may be starting
    return target


def _say_without(reason: str) -> None:
    print(
        f"rankscope: the probe's shortcuts are not compiled ({reason}); steps of a few milliseconds cost more",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(0 if build(Path(__file__).parent) is not None else 1)
