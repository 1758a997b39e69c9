"""The package as it is built: with the probe's shortcuts where there is a compiler, and without them elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def built(folder: Path, **environment: str) -> tuple[Path, str]:
    """A wheel of a copy of the sources, and what was said."""
    sources = folder / "sources"
    compiled = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src", sources / "src", ignore=compiled)
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, sources)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")],
        cwd=sources,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (wheel,) = (folder / "wheels").iterdir()
    return wheel, done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_wheel_holds_the_shortcuts_for_this_python_alone(tmp_path: Path) -> None:
    wheel, _ = built(tmp_path)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{python}-{python}-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.startswith("rankscope/probe/_quick.cpython-")]) == 1
    assert not [name for name in names if "/native/" in name]


def test_wheel_is_built_without_a_compiler_and_says_so_in_one_line(tmp_path: Path) -> None:
    wheel, said = built(tmp_path, CC=str(tmp_path / "no-cc"))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    (line,) = [line for line in said.splitlines() if "shortcuts" in line]
    assert "No such file or directory" in line


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_source_that_does_not_compile_leaves_the_package_whole(tmp_path: Path) -> None:
    failing = tmp_path / "failing-cc"
    failing.write_text("#!/bin/sh\necho 'quick.c:1: error: no such header' >&2\nexit 1\n")
    failing.chmod(0o755)
    wheel, said = built(tmp_path, CC=str(failing))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "not compiled (quick.c:1: error: no such header)" in said
