"""Whose lines are the user's when an installed package is the program."""

from __future__ import annotations

import argparse
import os

import msgspec
import pytest

from rankscope.evidence.stacks import is_user_file
from rankscope.launch.program import PROGRAM_VARIABLE, name_program


def started(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str, module: bool = True) -> None:
    monkeypatch.setenv(PROGRAM_VARIABLE, "/left/over/")
    name_program(argparse.Namespace(module=module, training_script=script, training_script_args=list(arguments)))


def file_of(package: str, name: str) -> str:
    return os.path.join(package, name)


def test_installed_package_is_a_library_unless_it_is_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    package = os.path.dirname(msgspec.__file__)
    assert "site-packages" in package
    started(monkeypatch, "train.py", module=False)
    assert not is_user_file(file_of(package, "json.py"))
    started(monkeypatch, "msgspec.json", "--lr", "3")
    assert is_user_file(file_of(package, "json.py"))
    assert not is_user_file(file_of(package + "_other", "json.py"))


def test_trainer_is_user_code_when_it_is_the_program_and_the_probe_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import rankscope

    package = os.path.dirname(os.path.abspath(rankscope.__file__))
    started(monkeypatch, "rankscope.train.rank", "plan.json")
    assert is_user_file(file_of(package, "train/step.py"))
    assert not is_user_file(file_of(package, "probe/calls.py"))
    started(monkeypatch, "train.py", module=False)
    assert not is_user_file(file_of(package, "train/step.py"))


@pytest.mark.parametrize("arguments", [("train.py",), ("--flag", "scripts/train.py", "--lr", "1")])
def test_module_that_is_handed_a_script_is_not_the_program(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    started(monkeypatch, "msgspec.json", *arguments)
    assert PROGRAM_VARIABLE not in os.environ


def test_module_that_cannot_be_found_is_left_to_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, "no_such_package.train")
    assert PROGRAM_VARIABLE not in os.environ
