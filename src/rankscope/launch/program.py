"""Which installed package is the program itself: its lines are the user's, although it lies among the libraries."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil

from rankscope.whose_code import is_user_file, program_of

PROGRAM_VARIABLE = "RANKSCOPE_PROGRAM"
"""Folders of the program's package, for the probe, which notes them on its page for whoever reads stacks."""
_SCRIPT_IMPORTS = re.compile(rb"^from ([\w.]+) import \w+|^import ([\w.]+)", re.MULTILINE)
_SCRIPT_BYTES = 4096


def name_program(options: argparse.Namespace) -> None:
    """Notes in the environment what `--module NAME`, or a console script, stands for.

    A module that is handed a script (a launcher, a debugger, a profiler) is not the program; the script is.
    """
    os.environ.pop(PROGRAM_VARIABLE, None)
    if any(argument.endswith(".py") for argument in options.training_script_args):
        return
    folders = _folders(options)
    if folders:
        os.environ[PROGRAM_VARIABLE] = os.pathsep.join(sorted(folders))


def _folders(options: argparse.Namespace) -> set[str]:
    if options.module:
        return _package_folders(options.training_script.partition(".")[0])
    if options.no_python:
        package = _package_of_script(options.training_script)
        # One that was installed with `pip install -e` is the user's by its place already.
        return {folder for folder in _package_folders(package) if program_of(folder)} if package else set()
    script = os.path.abspath(options.training_script)
    installed = [path for path in {script, os.path.realpath(script)} if not is_user_file(path)]
    # A file that lies among the libraries and was named as the script is the user's, whosever package it is in.
    return {folder for path in installed for folder in program_of(path) or (path,)}


def _package_folders(top: str) -> set[str]:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return set()  # the ranks will say so
    if spec is None:
        return set()
    if not spec.submodule_search_locations:
        return set(program_of(spec.origin or ""))
    folders = {form for path in spec.submodule_search_locations for form in (path, os.path.realpath(path))}
    return {os.path.join(folder, "") for folder in folders}


def _package_of_script(name: str) -> str:
    """The package that a console script calls; empty for any other program."""
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            head = file.read(_SCRIPT_BYTES)
    except OSError:
        return ""
    if not head.startswith(b"#!") or b"python" not in head.partition(b"\n")[0]:
        return ""
    names = [(first or second).decode() for first, second in _SCRIPT_IMPORTS.findall(head)]
    called = [name.partition(".")[0] for name in names if name not in ("sys", "re")]
    return called[0] if called else ""
