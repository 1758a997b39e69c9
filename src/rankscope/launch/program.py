"""Which installed package is the program itself: its lines are the user's, although it lies among the libraries."""

from __future__ import annotations

import argparse
import importlib.util
import os

PROGRAM_VARIABLE = "RANKSCOPE_PROGRAM"
"""Folders of the program's package, for the probe and for whoever reads stacks."""


def name_program(options: argparse.Namespace) -> None:
    """Notes in the environment what `--module NAME` stands for.

    A module that is handed a script (a launcher, a debugger, a profiler) is not the program; the script is.
    """
    os.environ.pop(PROGRAM_VARIABLE, None)
    if not options.module or any(argument.endswith(".py") for argument in options.training_script_args):
        return
    top = options.training_script.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return  # the ranks will say so
    if spec is not None and spec.submodule_search_locations:
        folders = {form for path in spec.submodule_search_locations for form in (path, os.path.realpath(path))}
        os.environ[PROGRAM_VARIABLE] = os.pathsep.join(sorted(os.path.join(folder, "") for folder in folders))
