"""Imports of watched modules go as they go without us, whatever finders and loaders the program has."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import pickle
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from test_probe import only_page, run_with_probe

from rankscope.evidence.pages import read_page
from rankscope.probe import imports
from rankscope.probe.imports import ImportWatch

NAMES = ("watched_one", "watched_two", "watched_never")


@pytest.fixture
def told() -> list[str]:
    """What the watch reported, and the modules that it told of."""
    return []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Iterator[Path]:
    """A path of its own, and a watch that is installed."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("watched_one", "watched_two"):
        (tmp_path / f"{name}.py").write_text(f"value = {name!r}\n")
    watch = ImportWatch(told.append)
    for name in NAMES:
        watch.when_imported(name, lambda module: told.append(module.__name__))
    watch.install()
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


class Old:
    """As of six 1.15, which many packages carry."""

    def find_module(self, *_: object) -> None:
        return None


@pytest.mark.filterwarnings("ignore::ImportWarning")
@pytest.mark.usefixtures("folder")
def test_an_old_finder_is_passed_over(told: list[str]) -> None:
    sys.meta_path.insert(1, Old())  # type: ignore[arg-type]
    assert importlib.import_module("watched_one").value == "watched_one"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("watched_never")
    assert told == ["watched_one"]


def test_a_missing_optional_package_stays_optional_beside_an_old_finder(tmp_path: Path) -> None:
    program = (
        "import sys\nclass Old:\n    def find_module(self, name, path=None):\n        return None\n"
        "sys.meta_path.append(Old())\nsys.path[:] = [each for each in sys.path if 'site-packages' not in each]\n"
        "try:\n    import deepspeed\nexcept ImportError as error:\n    print(error)\n"
    )
    ended = run_with_probe(tmp_path, program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "No module named 'deepspeed'\n", "")
    assert read_page(only_page(tmp_path)).progress.probe_errors == ()


@pytest.mark.usefixtures("folder")
def test_a_finder_that_removes_itself_or_asks_behind_itself_is_followed(told: list[str]) -> None:
    class Once:
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            if name != "watched_one":
                return None
            sys.meta_path.remove(self)
            return importlib.util.find_spec(name)

    sys.meta_path.insert(1, Once())
    assert importlib.import_module("watched_one").value == "watched_one"
    assert importlib.import_module("watched_two").value == "watched_two"
    assert told == ["watched_one", "watched_two"]


@pytest.mark.usefixtures("folder")
def test_what_a_finder_raises_comes_through() -> None:
    class Refuses:
        def find_spec(self, *_: object) -> None:
            raise PermissionError("not on this machine")

    sys.meta_path.insert(1, Refuses())
    with pytest.raises(PermissionError, match="not on this machine") as raised:
        importlib.import_module("watched_one")
    if sys.version_info >= (3, 11):  # before, a frame that an exception has passed cannot be taken out
        assert Path(imports.__file__) not in [entry.path for entry in raised.traceback]


@pytest.mark.usefixtures("folder")
def test_a_loader_that_takes_no_attributes_still_loads(told: list[str]) -> None:
    class Bare:
        __slots__ = ()

        def create_module(self, _: ModuleSpec) -> None:
            return None

        def exec_module(self, module: ModuleType) -> None:
            module.value = 7  # type: ignore[attr-defined]

    class Finder:
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return ModuleSpec(name, Bare()) if name == "watched_one" else None  # type: ignore[arg-type]

    sys.meta_path.insert(1, Finder())
    assert importlib.import_module("watched_one").value == 7
    assert "watched_one cannot be followed" in told[0]


def test_a_loader_of_several_modules_tells_of_the_right_one(
    folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zip file has one for all that is in it."""
    for name in ("watched_one", "watched_two"):
        (folder / f"{name}.py").unlink()
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for name in ("watched_one", "watched_two", "watched_beside"):
            archive.writestr(f"{name}.py", f"value = {name!r}\n")
    monkeypatch.syspath_prepend(folder / "all.zip")
    assert importlib.util.find_spec("watched_one") is not None
    try:
        assert importlib.import_module("watched_beside").value == "watched_beside"
    finally:
        sys.modules.pop("watched_beside", None)
    assert told == []
    assert importlib.import_module("watched_two").value == "watched_two"
    assert importlib.import_module("watched_one").value == "watched_one"
    assert told == ["watched_two", "watched_one"]


@pytest.mark.usefixtures("folder")
def test_specs_are_pickled_and_copied_as_ever(told: list[str]) -> None:
    spec = importlib.util.find_spec("watched_one")
    assert spec is not None
    for again in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec)):
        module = importlib.util.module_from_spec(again)
        assert again.loader is not None
        again.loader.exec_module(module)
        assert module.value == "watched_one"
    assert told == []
    module = importlib.import_module("watched_one")
    assert told == ["watched_one"]
    spec = module.__spec__
    assert spec is not None
    assert "exec_module" not in vars(spec.loader)
    assert pickle.loads(pickle.dumps(spec)).name == "watched_one"


def test_a_warning_at_import_is_told_of_the_line_that_imports(folder: Path) -> None:
    (folder / "watched_one.py").write_text("import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n")
    (folder / "importing.py").write_text("import watched_one\n")
    try:
        with pytest.warns(DeprecationWarning, match="old") as caught:
            importlib.import_module("importing")
    finally:
        sys.modules.pop("importing", None)
    assert [Path(each.filename).name for each in caught] == ["importing.py"]
