"""What is published: one version, a source package that builds, workflows that run the scripts of this repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import rankscope

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
sys.path.insert(0, str(ROOT / "scripts"))
from matrix import BEGIN, END, HEAD, Row, merged  # noqa: E402


def test_the_version_has_one_source() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == rankscope.__version__
    assert f"## {rankscope.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_source_package_holds_what_a_build_needs_and_nothing_compiled(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=120,
    )
    (sdist,) = tmp_path.iterdir()
    assert sdist.name == f"rankscope-{rankscope.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert needed | {"src/rankscope/probe/native/quick.c", "src/rankscope/py.typed", "docs/start.md"} <= names
    assert [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("zoo", "tests"))] == []


def steps_of(workflow: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(job, step) of every step that runs a command."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [(job, step) for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_parse_and_are_bounded(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert True in content, "YAML 1.1 reads the key `on` as true"
    for job in content["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 90
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_workflows_call_the_scripts_of_this_repository() -> None:
    commands = [step["run"] for workflow in WORKFLOWS for _, step in steps_of(workflow)]
    assert "bash .ci/run" in commands
    assert "mkdocs build --strict" in commands
    called = [word for command in commands for word in command.split() if word.startswith((".ci/", "scripts/"))]
    assert {".ci/run", "scripts/matrix.py"} <= set(called)
    assert [path for path in called if not (ROOT / path).exists()] == []


def test_the_workflow_tries_every_python_that_the_package_claims() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    (packages,) = [path for path in WORKFLOWS if path.name == "packages.yml"]
    matrix = yaml.safe_load(packages.read_text())["jobs"]["matrix"]["strategy"]["matrix"]
    assert matrix["python"] == claimed
    assert claimed == ["3.10", "3.11", "3.12", "3.13", "3.14"]


def test_rows_of_the_table_are_sorted_and_newer_ones_replace_older() -> None:
    empty = f"# Install\n\n{BEGIN}{END}\nafter\n"
    rows = [Row("3.11.7", "2.13.0+cpu", ("a",)), Row("3.9.1", "2.9.1+cu128", ("b",)), Row("3.11.7", "2.9.1", ("c",))]
    page = merged(empty, rows)
    assert [line for line in page.splitlines() if line.startswith("| 3.")] == [
        "| 3.9.1 | 2.9.1+cu128 | b |",
        "| 3.11.7 | 2.9.1 | c |",
        "| 3.11.7 | 2.13.0+cpu | a |",
    ]
    assert HEAD in page
    assert page.endswith("\nafter\n")
    again = merged(page, [Row("3.11.7", "2.9.1", ("d",))])
    assert again == page.replace("| 3.11.7 | 2.9.1 | c |", "| 3.11.7 | 2.9.1 | d |")


def test_the_table_has_the_form_that_the_script_writes() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    assert table[0] == HEAD
    rows = table[2:]
    assert rows, "no combination was run"
    assert [row for row in rows if row.count(" | ") != HEAD.count(" | ") or "FAILED" in row] == []
