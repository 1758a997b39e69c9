"""The shell scripts: set-up, training, tests and what CI calls.

The set-up runs here against an interpreter that pretends: it makes an empty virtual environment and writes
down how pip was called, so that nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankscope.train.command import build_parser

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["run_training.sh", "run_tests.sh", ".ci/run", "scripts/setup.sh", "scripts/check.sh"]

PRETENDING_PYTHON = """\
#!/usr/bin/env bash
calls={calls}
case "$1 ${{2:-}}" in
    "-V "*) echo "Python $(cat "$calls.version")" ;;
    "-m venv")
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "VIRTUAL_ENV=$3" >"$3/bin/activate"
        echo "$*" >>"$calls"
        ;;
    "-m pip")
        [[ $3 == install ]] || exit 0
        echo "$*" >>"$calls"
        while [[ -e $calls.hold ]]; do sleep 0.05; done
        [[ ! -e $calls.broken ]] || {{ printf 'ERROR: %s\\n' "No such version" "see the manual"; exit 1; }}
        ;;
    "-c import ensurepip, venv") [[ ! -e $calls.no-venv ]] ;;
    *) exec {python} "$@" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of what the set-up reads, with the pretending interpreter beside it."""

    root: Path
    calls: Path

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        # A pytest that a script starts is no part of the one that runs these tests.
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return subprocess.Popen(
            ["bash", str(self.root / script), *arguments],
            cwd="/",
            env={**own, "RANKSCOPE_PYTHON": f"{self.calls}.python", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *arguments, **environment)
        stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("scripts/setup.sh", **environment)

    def took(self) -> list[str]:
        """The steps since the last time this was asked: `venv`, `torch`, `rankscope`."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        names = {"-m venv": "venv", "torch": "torch", "[dev]": "rankscope"}
        return [
            next(name for mark, name in names.items() if mark in line.split("constraints.txt")[-1]) for line in lines
        ]

    def tell(self, what: str, text: str = "") -> None:
        """Tells the interpreter how to behave: `version`, pip on `hold` or `broken`, `no-venv`."""
        Path(f"{self.calls}.{what}").write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    root = tmp_path / "a folder"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", root / "scripts")
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copy(ROOT / "constraints.txt", root)
    shutil.copy(ROOT / "hatch_build.py", root)
    shutil.copytree(ROOT / "src" / "rankscope" / "probe" / "native", root / "src" / "rankscope" / "probe" / "native")
    tree = Tree(root=root, calls=tmp_path / "calls")
    tree.tell("version", "3.11.7")
    tree.tell("python", PRETENDING_PYTHON.format(calls=tree.calls, python=sys.executable))
    Path(f"{tree.calls}.python").chmod(0o755)
    yield tree
    Path(f"{tree.calls}.hold").unlink(missing_ok=True)  # a test that failed leaves no pip waiting


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the repository from another folder."""
    command = ["bash", str(ROOT / script), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_executable_and_has_no_syntax_error(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    checked = subprocess.run(["bash", "-n", str(ROOT / script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_ci_calls_run_tests_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set "))]
    assert commands == ['bash "$(dirname -- "${BASH_SOURCE[0]}")/../run_tests.sh"']


@pytest.mark.parametrize("script", ["run_training.sh", "run_tests.sh"])
def test_help_works_from_any_folder_without_a_set_up(script: str) -> None:
    shown = run(script, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: {script}")
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--stesp", "3"], "unknown argument --stesp"),
        (["--debug", "extra"], "unknown argument extra"),
        (["--max-steps"], "--max-steps needs a value"),
    ],
)
def test_training_refuses_a_mistake_in_one_line(arguments: list[str], complaint: str) -> None:
    refused = run("run_training.sh", *arguments)
    assert refused.returncode == 2
    assert refused.stderr == f"run_training.sh: {complaint}; see run_training.sh --help\n"
    assert refused.stdout == ""


def copy_with_recorded_commands(tree: Tree, *scripts: str) -> Path:
    """Puts scripts into the tree, set up, where each program of .venv only writes down how it was called."""
    for script in scripts:
        shutil.copy(ROOT / script, tree.root / script)
    assert tree.set_up().returncode == 0
    record = tree.root / "record"
    for program in ("rankscope", "ruff", "mypy"):
        fake = tree.root / ".venv" / "bin" / program
        fake.write_text(f'#!/bin/sh\necho "{program} $*" >>"{record}"\n[ ! -e "{record}.fail-{program}" ]\n')
        fake.chmod(0o755)
    return record


@pytest.mark.parametrize(
    ("arguments", "prepared"),
    [
        ([], "--preset production"),
        (["--debug", "--max-steps", "3"], "--debug"),
        (
            ["--config=a file", "--override", "data.tokenizer=bytes", "--gpus", "0,1"],
            "--config=a file --override data.",
        ),
        (["--preset", "micro", "--", "--on-hang", "stop"], "--preset micro"),
    ],
)
def test_training_prepares_the_data_first_and_trains_with_all_options(
    tree: Tree, arguments: list[str], prepared: str
) -> None:
    record = copy_with_recorded_commands(tree, "run_training.sh")
    assert tree.run("run_training.sh", *arguments).returncode == 0
    first, second = record.read_text().splitlines()
    assert first.startswith(f"rankscope prepare {prepared}")
    assert second == " ".join(["rankscope train", *arguments])


@pytest.mark.parametrize(
    "option", [action for action in build_parser()._actions if action.dest != "help"], ids=lambda action: action.dest
)
def test_training_takes_every_option_of_the_verb(tree: Tree, option: argparse.Action) -> None:
    record = copy_with_recorded_commands(tree, "run_training.sh")
    given = [option.option_strings[-1], *([] if option.nargs == 0 else ["VALUE"])]
    ended = tree.run("run_training.sh", *given)
    assert ended.returncode == 0, ended.stderr
    assert record.read_text().splitlines()[-1] == " ".join(["rankscope train", *given])


def test_training_prepares_nothing_where_only_the_configuration_is_wanted(tree: Tree) -> None:
    record = copy_with_recorded_commands(tree, "run_training.sh")
    assert tree.run("run_training.sh", "--debug", "--show-config").returncode == 0
    assert record.read_text() == "rankscope train --debug --show-config\n"


def test_training_ends_with_the_exit_code_of_the_run(tree: Tree) -> None:
    copy_with_recorded_commands(tree, "run_training.sh")
    (tree.root / ".venv" / "bin" / "rankscope").write_text("#!/bin/sh\nexit 75\n")
    assert tree.run("run_training.sh").returncode == 75


def test_check_runs_all_three_even_when_the_first_fails(tree: Tree) -> None:
    record = copy_with_recorded_commands(tree, "scripts/check.sh")
    Path(f"{record}.fail-ruff").touch()
    checked = tree.run("scripts/check.sh")
    assert checked.returncode == 1
    assert record.read_text().splitlines() == ["ruff check", "ruff format --check", "mypy "]
    assert checked.stderr == "check: failed: ruff check\ncheck: failed: ruff format --check\n"


def test_first_set_up_installs_torch_before_rankscope_and_the_second_calls_no_pip(tree: Tree) -> None:
    assert tree.set_up().returncode == 0
    assert tree.took() == ["venv", "torch", "rankscope"]
    again = tree.set_up()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert tree.took() == []


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "constraints.txt", "hatch_build.py", "src/rankscope/probe/native/quick.c"]
)
def test_a_changed_requirement_installs_again_into_the_same_environment(tree: Tree, changed: str) -> None:
    tree.set_up()
    tree.took()
    with (tree.root / changed).open("a") as file:
        file.write("# changed\n")
    assert tree.set_up().returncode == 0
    assert tree.took() == ["torch", "rankscope"]


def test_an_environment_made_by_hand_is_adopted(tree: Tree) -> None:
    subprocess.run([f"{tree.calls}.python", "-m", "venv", str(tree.root / ".venv")], check=True)
    tree.took()
    assert tree.set_up().returncode == 0
    assert tree.took() == ["torch", "rankscope"]


def test_an_environment_made_in_another_folder_is_made_anew(tree: Tree) -> None:
    tree.set_up()
    tree.took()
    moved = Tree(root=tree.root.rename(tree.root.with_name("moved")), calls=tree.calls)
    done = moved.set_up()
    assert "making .venv anew: it was made in another folder" in done.stderr
    assert moved.took() == ["venv", "torch", "rankscope"]


def test_two_set_ups_at_once_install_once(tree: Tree) -> None:
    tree.tell("hold")
    first = tree.start("scripts/setup.sh")
    assert first.stderr is not None
    while "installing torch" not in first.stderr.readline():
        assert first.poll() is None
    second = tree.start("scripts/setup.sh")
    assert second.stderr is not None
    assert second.stderr.readline() == "setup: another set-up of this folder is running; waiting for it\n"
    Path(f"{tree.calls}.hold").unlink()
    first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert tree.took() == ["venv", "torch", "rankscope"]


def test_a_failed_install_says_why_and_where_in_one_line_and_is_tried_again(tree: Tree) -> None:
    tree.tell("broken")
    failed = tree.set_up()
    assert failed.returncode == 1
    log = tree.root / ".venv" / "setup.log"
    reason = "ERROR: No such version"
    assert failed.stderr.splitlines()[-1].endswith(f"failed ({reason}); see {log}")
    assert reason in log.read_text()
    tree.took()
    Path(f"{tree.calls}.broken").unlink()
    assert tree.set_up().returncode == 0
    assert tree.took() == ["torch", "rankscope"]


def test_an_interpreter_that_is_too_old_is_refused_in_one_line(tree: Tree) -> None:
    tree.tell("version", "3.9.18")
    refused = tree.set_up()
    assert refused.returncode == 1
    assert refused.stderr == f"setup: RANKSCOPE_PYTHON={tree.calls}.python is not a working Python 3.10 or newer\n"
    assert tree.took() == []


def test_a_missing_venv_module_names_the_system_package(tree: Tree, tmp_path: Path) -> None:
    tree.tell("no-venv")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text("#!/bin/sh\necho apt-get was called\n")
    (programs / "apt-get").chmod(0o755)
    refused = tree.set_up(PATH=f"{programs}:{os.environ['PATH']}")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        f"setup: {tree.calls}.python cannot make virtual environments; "
        "install python3.11-venv (apt-get install python3.11-venv)"
    )
    log = (tree.root / ".venv" / "setup.log").read_text()
    assert ("apt-get was called" in log) == (os.geteuid() == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs system packages")
def test_a_missing_compiler_is_installed_and_where_that_fails_the_set_up_goes_on(tree: Tree, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text("#!/bin/sh\necho apt-get $*\n[ $1 = update ]\n")
    (programs / "apt-get").chmod(0o755)
    done = tree.set_up(PATH=f"{programs}:{os.environ['PATH']}", CC=str(tmp_path / "no-cc"))
    assert done.returncode == 0
    assert "setup: going on without them" in done.stderr.splitlines()
    log = (tree.root / ".venv" / "setup.log").read_text()
    assert "apt-get install --yes --no-install-recommends gcc libc6-dev\n" in log
    assert tree.took() == ["venv", "torch", "rankscope"]


@pytest.mark.slow
def test_the_example_trains_and_saves_under_plain_torchrun(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = tmp_path / "folder" / "model.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    trained = subprocess.run(
        [
            *command,
            str(ROOT / "examples" / "plain_ddp.py"),
            "--debug",
            "--steps",
            "3",
            "--save",
            str(checkpoint),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.count("step 3/3  loss ") == 1
    assert set(torch.load(checkpoint, weights_only=True)) == {"model", "optimizer"}


SHAKY = """
import os
import pathlib
import pytest
from conftest import never_look_again

{mark}
def test_passes_the_second_time(request):
    {first}
    seen = pathlib.Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again

def test_has_others_beside_it():
    assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.alone
def test_has_nothing_beside_it():
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""


def copy_shaky(tree: Tree, mark: str = "", first: str = "") -> None:
    """run_tests.sh, with a test that passes the second time."""
    copy_with_recorded_commands(tree, "run_tests.sh", "scripts/check.sh")
    (tree.root / "tests").mkdir()
    for name in ("conftest.py", "in_tmux.py", "searching.py"):
        shutil.copy(ROOT / "tests" / name, tree.root / "tests")
    (tree.root / "tests" / "test_shaky.py").write_text(SHAKY.format(mark=mark, first=first))
    for program in ("chromium", "tmux", "mpirun"):  # nothing is to be installed
        (tree.root / program).touch(0o755)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "first", "ci", "code"),
    [
        ("", "", "true", 0),
        ("@pytest.mark.alone", "", "true", 0),
        ("", "never_look_again(request)", "true", 1),
        ("@pytest.mark.alone", "never_look_again(request)", "true", 1),
        ("", "", "", 1),
    ],
    ids=["ci", "ci, alone", "for good", "for good, alone", "here"],
)
def test_failed_tests_get_a_second_look_in_ci_unless_they_must_be_right_at_once(
    tree: Tree, mark: str, first: str, ci: str, code: int
) -> None:
    copy_shaky(tree, mark, first)
    ran = tree.run("run_tests.sh", "-n", "1", CI=ci, PATH=f"{os.environ['PATH']}:{tree.root}")
    assert ran.returncode == code, ran.stdout
    assert ran.stdout.count("1 failed") == 1
    assert ("a second look at the tests that failed" in ran.stdout) == bool(ci)
    assert ("must be right the first time" in ran.stdout) == (ci == "true" and bool(first))


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "code"), [("nothing_beside_it", 0), ("others_beside_it", 0), ("no_such_test", 5)])
def test_a_choice_of_tests_may_leave_one_turn_or_both_with_none(tree: Tree, chosen: str, code: int) -> None:
    copy_shaky(tree)
    ran = tree.run("run_tests.sh", "-n", "1", "-k", chosen, PATH=f"{os.environ['PATH']}:{tree.root}")
    assert ran.returncode == code, ran.stdout
    assert ran.stdout.count("1 passed") == (code == 0)
