"""The commands of docs/data.md work as they stand there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("yaml")

from rankscope.cli import main
from rankscope.train.settings import preset_names

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("rankscope prepare")]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_page(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "notes.md").write_text(PAGE)
    assert main(shlex.split(command)[1:]) == 0


def test_the_page_names_every_preset() -> None:
    assert [name for name in preset_names() if f"`{name}`" not in PAGE] == []
