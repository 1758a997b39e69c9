"""A program's own module that is named like one of the standard library: the probe has imported that one before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.launch.environment import SITE

LOADED = "import sys\nprint(*(name for name in sys.modules if '.' not in name))\n"
OURS = {"rankscope", "sitecustomize"}


def run(folder: Path, *command: str, path: str = "", probe: bool = True) -> subprocess.CompletedProcess[str]:
    """As the launcher starts a rank, or without the probe."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANKSCOPE_", "PYTHON"))}
    pages = folder / "pages"
    if probe:
        pages.mkdir(exist_ok=True)
        env |= {"RANKSCOPE_PAGES": str(pages), "RANKSCOPE_PROBE_ERRORS": str(folder / "errors")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE) if probe else "", path]))
    ended = subprocess.run(
        [sys.executable, "-B", *command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert not (folder / "errors").exists(), (folder / "errors").read_text()
    assert not probe or list(pages.glob("*.page")), ended.stderr
    return ended


def loaded(folder: Path, probe: bool) -> set[str]:
    (folder / "loaded.py").write_text(LOADED)
    return set(run(folder, "loaded.py", probe=probe).stdout.split())


def brought(folder: Path) -> list[str]:
    """Modules that are there before the program's first line, and would not be without us."""
    names = loaded(folder, probe=True) - loaded(folder, probe=False) - OURS - set(sys.builtin_module_names)
    assert {"resource", "socket", "array"} <= names
    return sorted(names)


SHOWN = "import sys\nfor name in sys.argv[1:]:\n    print(name, __import__(name).__dict__.get('__file__'))\n"


def own_module(folder: Path, name: str) -> Path:
    folder.mkdir()
    own = folder / f"{name}.py"
    own.write_text("mine = True\n")
    return own


@pytest.mark.parametrize("how", ["a script", "a module", "on PYTHONPATH"])
def test_each_name_that_the_probe_brings_is_the_programs_where_it_has_such_a_file(tmp_path: Path, how: str) -> None:
    """One name at a time: a program that has them all does not run without us either."""
    for name in brought(tmp_path):
        folder = tmp_path / f"with-{name}"
        own = own_module(folder, name)
        program = (tmp_path if how == "on PYTHONPATH" else folder) / "program_.py"
        program.write_text(SHOWN)
        if how == "a module":
            if name == "importlib":
                continue  # Python itself needs it to run a module
            ended = run(folder, "-m", "program_", name)
        else:
            ended = run(tmp_path, str(program), name, path=str(folder) if how == "on PYTHONPATH" else "")
        assert ended.stdout == f"{name} {own}\n", ended.stderr


def test_a_package_and_a_script_behind_a_link_are_found_too(tmp_path: Path) -> None:
    own = tmp_path / "program" / "resource" / "__init__.py"
    own.parent.mkdir(parents=True)
    own.touch()
    (tmp_path / "program" / "train.py").write_text(SHOWN)
    (tmp_path / "train.py").symlink_to("program/train.py")
    assert run(tmp_path, "train.py", "resource").stdout == f"resource {own}\n"


def test_a_mere_folder_of_such_a_name_changes_nothing(tmp_path: Path) -> None:
    """A folder without code comes after the standard library."""
    names = brought(tmp_path)
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.txt").touch()
    assert set(names) <= loaded(tmp_path, probe=True)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_started_process_of_multiprocessing_finds_the_programs_module(tmp_path: Path, method: str) -> None:
    folder = tmp_path / "program"
    own_module(folder, "resource")
    (folder / "train.py").write_text(
        "import multiprocessing\nimport resource\ndef work():\n    print(resource.mine)\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    process.start()\n    process.join()\n"
    )
    ended = run(tmp_path, str(folder / "train.py"))
    assert (ended.stdout, ended.stderr) == ("True\n", "")


def test_a_hook_for_paths_that_the_program_adds_is_asked_about_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nasked = []\n"
        "def hook(path):\n    asked.append(path)\n    raise ImportError\n"
        "sys.path_hooks.insert(0, hook)\nimport beside\nprint(asked == [sys.path[0]], beside.value)\n"
    )
    (tmp_path / "beside.py").write_text("value = 1\n")
    assert run(tmp_path, "train.py").stdout == run(tmp_path, "train.py", probe=False).stdout == "True 1\n"


def test_a_working_folder_that_was_removed_costs_nothing(tmp_path: Path) -> None:
    gone = f"import os, subprocess, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('{tmp_path}/gone')\n"
    gone += "sys.exit(subprocess.call([sys.executable, '-B', '-c', 'print(1)']))\n"
    (tmp_path / "outer.py").write_text(gone)
    ended = run(tmp_path, "outer.py")
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
