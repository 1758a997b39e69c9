"""Names of modules that are the program's: a file of its own that is named like one of the standard library.

Without us, `import resource` finds the program's resource.py if it lies beside the script. The probe has imported
Python's by then, and under that name the program would be given it. So the name is taken from it again; whoever has
imported the module holds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

from rankscope.probe.sites import START_FOLDER

FOLDER_VARIABLE = "RANKSCOPE_FIRST_FOLDER"
"""Set by us, for processes that `multiprocessing` starts: they are given the path of the one that started them."""


def give_back(loaded_before: Collection[str], path: list[str]) -> None:
    """`path` is searched before the standard library, and so is the folder that Python puts before everything once
    it runs the program."""
    path = [*_first_folders(), *path]
    known = set(sys.path_importer_cache)
    ours = {name.partition(".")[0] for name in set(sys.modules).difference(loaded_before)}
    for name in ours.difference(loaded_before, ("rankscope", "sitecustomize")):
        if _is_found(name, path):
            for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[loaded]
    for entry in set(sys.path_importer_cache).difference(known):
        del sys.path_importer_cache[entry]  # a program that adds a hook for paths adds it for these too


def _first_folders() -> list[str]:
    if getattr(sys.flags, "safe_path", False):
        return []
    program = sys.argv[0] if sys.argv else ""
    if program in ("", "-", "-c"):
        return [START_FOLDER, os.environ.get(FOLDER_VARIABLE, "")]
    if program == "-m":
        folders = [START_FOLDER]
    elif os.path.isdir(program):
        folders = [program]
    else:
        folders = [os.path.dirname(os.path.realpath(program)), program]  # a zip file is a folder as well
    os.environ[FOLDER_VARIABLE] = folders[0]
    return folders


def _is_found(name: str, path: list[str]) -> bool:
    """As a module or a package; a mere folder comes after the standard library."""
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return False  # these come before any folder
    spec = PathFinder.find_spec(name, path)
    return spec is not None and spec.loader is not None
