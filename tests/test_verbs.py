"""The verbs of the command line: those of the core, and those that packages bring by entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope import cli
from rankscope.errors import UsageError
from rankscope.train.verbs import told_what_to_install
from rankscope.verbs import brought_verbs

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"


def package(folder: Path, entries: str, module: str) -> None:
    """A package that brings verbs, as pip would leave it."""
    (folder / "guest.py").write_text(module)
    record = folder / "guest_package-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: guest-package\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[rankscope.verbs]\n{entries}\n")


GREET = """\
from rankscope.verbs import Verb

def greet(arguments):
    print("hello", *arguments)
    return 7

GREET = Verb("say hello", "rankscope greet you", greet)
MISTAKE = greet
"""


def test_the_trainers_verbs_come_by_entry_points_alone() -> None:
    brought = brought_verbs()
    assert {"train", "prepare"} <= set(brought)
    assert not {"train", "prepare"} & set(cli.VERBS)
    assert "train      train a language model as such a job" in cli.usage()


def test_a_verb_of_another_package_is_listed_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path, "greet = guest:GREET", GREET)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["greet", "you"]) == 7
    assert capsys.readouterr().out == "hello you\n"
    (line,) = [line for line in cli.usage().splitlines() if line.startswith("  greet ")]
    assert "say hello" in line
    assert "rankscope greet you" in line


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("greet = guest:ABSENT", "cannot be loaded: AttributeError"),
        ("greet = guest_that_is_gone:GREET", "cannot be loaded: ModuleNotFoundError"),
        ("greet = guest:MISTAKE", "is not a rankscope.verbs.Verb"),
    ],
)
def test_a_broken_verb_is_one_line_and_hides_no_other(
    entry: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path, entry, GREET)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("guest", None)
    assert cli.main(["greet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rankscope: the verb 'greet' of guest-package")
    assert why in line
    assert why in cli.usage()
    assert "  run        start a job" in cli.usage()


def test_a_package_does_not_take_a_verb_of_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "check = guest:GREET", GREET)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.find_verb("check") is cli.VERBS["check"]
    assert "say hello" not in cli.usage()


def test_a_missing_package_of_the_extra_is_one_line_with_what_to_install() -> None:
    def without(name: str) -> int:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    with pytest.raises(
        UsageError, match=r"'rankscope train' needs the package numpy.*pip install 'rankscope\[train\]'"
    ):
        told_what_to_install("train", lambda: without("numpy.random"))
    with pytest.raises(ModuleNotFoundError):
        told_what_to_install("train", lambda: without("a_module_of_the_user"))


CORE_ALONE = """\
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("rankscope.train"):
            sys.exit(f"the core asks for {{name}}")
        if name.split(".")[0] in {extra!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)  # torch does without numpy

sys.meta_path.insert(0, Refused())
from rankscope.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments", [["diagnose", "job.log"], ["check", "limits"], ["run", "--help"], ["attach", "--help"]], ids=" ".join
)
def test_the_core_works_without_the_trainer_and_its_packages(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no\n")
    program = CORE_ALONE.format(extra={"numpy", "pyarrow", "yaml", "safetensors", "tokenizers"})
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "the core asks for" not in ended.stdout + ended.stderr
    assert ended.returncode in ((1,) if arguments[0] == "diagnose" else (0, 1)), ended.stderr
    assert "Traceback" not in ended.stderr
