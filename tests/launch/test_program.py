"""Whose lines are the user's when an installed package is the program."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import rankscope
from rankscope.launch.program import PROGRAM_VARIABLE, name_program
from rankscope.whose_code import is_user_file


def started(
    monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str, module: bool = True, no_python: bool = False
) -> tuple[str, ...]:
    """The folders that the ranks are told."""
    monkeypatch.setenv(PROGRAM_VARIABLE, "/left/over/")
    name_program(
        argparse.Namespace(
            module=module, no_python=no_python, training_script=script, training_script_args=list(arguments)
        )
    )
    return tuple(filter(None, os.environ.get(PROGRAM_VARIABLE, "").split(os.pathsep)))


def test_installed_package_is_a_library_unless_it_is_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    package = os.path.dirname(msgspec.__file__)
    assert "site-packages" in package
    assert started(monkeypatch, "train.py", module=False) == ()
    program = started(monkeypatch, "msgspec.json", "--lr", "3")
    assert is_user_file(os.path.join(package, "json.py"), program)
    assert not is_user_file(os.path.join(package + "_other", "json.py"), program)
    assert started(monkeypatch, os.path.join(package, "json.py"), module=False) == (os.path.join(package, ""),)


def test_console_script_stands_for_the_package_that_it_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "encode"
    script.write_text("#!/opt/x/bin/python3\nimport sys\nfrom msgspec.json import encode\nsys.exit(encode())\n")
    script.chmod(0o755)
    package = os.path.join(os.path.dirname(msgspec.__file__), "")
    assert package in started(monkeypatch, str(script), module=False, no_python=True)
    script.write_text("#!/bin/sh\nfrom msgspec import nothing\n")
    assert started(monkeypatch, str(script), module=False, no_python=True) == ()
    assert started(monkeypatch, "no-such-program", module=False, no_python=True) == ()


def test_trainer_is_user_code_when_it_is_the_program_and_the_probe_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    package = os.path.dirname(os.path.abspath(rankscope.__file__))
    program = started(monkeypatch, "rankscope.train.rank", "plan.json")
    assert is_user_file(os.path.join(package, "train/step.py"), program)
    assert not is_user_file(os.path.join(package, "probe/calls.py"), program)
    program = started(monkeypatch, "train.py", module=False)
    assert not is_user_file(os.path.join(package, "train/step.py"), program)


@pytest.mark.parametrize("arguments", [("train.py",), ("--flag", "scripts/train.py", "--lr", "1")])
def test_module_that_is_handed_a_script_is_not_the_program(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    assert started(monkeypatch, "msgspec.json", *arguments) == ()
    assert PROGRAM_VARIABLE not in os.environ


def test_module_that_cannot_be_found_is_left_to_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch, "no_such_package.train") == ()
    assert PROGRAM_VARIABLE not in os.environ


@pytest.mark.parametrize(("arguments", "user"), [((), True), (("script.py",), False)])
def test_process_that_no_launcher_named_finds_its_program_itself(
    tmp_path: Path, arguments: tuple[str, ...], user: bool
) -> None:
    """A rank that was started by a script of the user's, not by the launcher."""
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from rankscope.probe.sites import is_user_file\nis_user_file(__file__)\n")
    (package / "__main__.py").write_text(
        "from rankscope.probe.sites import is_user_file, program\n"
        "from trainer import __file__ as package\n"
        "import json\n"
        "print(is_user_file(__file__), is_user_file(package), is_user_file(json.__file__))\n"
    )
    paths = [str(tmp_path / "site-packages"), os.path.dirname(os.path.dirname(os.path.abspath(rankscope.__file__)))]
    environment = {name: value for name, value in os.environ.items() if name != PROGRAM_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(user), str(user), "False"]
