"""Files of this machine that a stranger's logs and dumps name: only programs that fit what is said of them are read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankscope.evidence.model import Frame
from rankscope.evidence.readers.named_sources import is_program_of, read_named_sources
from rankscope.report.report_command import report_command

PROGRAM = """\
import torch

TOKEN = "not for others"


@torch.compile
def forward(model):
    return [layer(1) for layer in model]


class Trainer:
    def fit(self):
        forward(lambda x: x)

if __name__ == "__main__":
    Trainer().fit()
"""


def read(path: Path, *places: tuple[str, int]) -> bool:
    frames = [Frame(function, str(path), line, user=True) for function, line in places]
    return bool(read_named_sources(frames, time.time() + 60))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shadow", "root:$6$abc:19000:0:99999:7:::\n"),
        (".env", "API = abc()\n"),
        ("credentials", "[default]\naws = 1\n"),
        ("id_rsa.py", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"),
        ("settings.py", "NAME = 'x'\nDOOR = 1\n"),
        ("notes.py", '"""Only words."""\n'),
    ],
)
@pytest.mark.parametrize("function", ["<module>", "main"])
def test_what_is_no_program_is_not_published(
    name: str, text: str, function: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    secret = tmp_path / name
    secret.write_text(text)
    log = tmp_path / "issue.log"
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "{secret}", line 1, in {function}\n'
        "[rank0]:     train()\n"
        "[rank0]: ValueError: boom\n"
    )
    assert report_command([str(log), "--format", "md"]) == 0
    shown = capfdbinary.readouterr().out.decode()
    assert "boom" in shown
    assert text.partition("\n")[0] not in shown


def test_a_program_in_which_the_frames_stand_is_read(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    log = tmp_path / "mine.log"
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "{script}", line 16, in <module>\n'
        f'[rank0]:   File "{script}", line 13, in fit\n'
        f'[rank0]:   File "{script}", line 8, in forward\n'
        "[rank0]: ValueError: boom\n"
    )
    assert report_command([str(log), "--format", "md"]) == 0
    assert "return [layer(1) for layer in model]" in capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize(
    "place",
    [
        ("<module>", 16),
        ("<module>", 1),
        ("<module>", 6),
        ("forward", 8),
        ("Trainer.fit", 13),
        ("Trainer", 12),
        ("<listcomp>", 8),
        ("<lambda>", 13),
        ("torch_dynamo_resume_in_forward_at_7", 8),
    ],
)
def test_a_frame_fits_the_function_that_its_line_lies_in(place: tuple[str, int]) -> None:
    assert is_program_of(PROGRAM, [place])


@pytest.mark.parametrize(
    "place",
    [
        ("<module>", 8),
        ("<module>", 3),
        ("<module>", 4),
        ("<module>", 99),
        ("main", 16),
        ("forward", 13),
        ("<lambda>", 8),
    ],
)
def test_a_frame_that_stands_elsewhere_speaks_of_another_file(place: tuple[str, int], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    assert read(script, ("forward", 8))
    assert not read(script, ("forward", 8), place)


def test_a_file_that_was_edited_since_is_not_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    frames = [Frame("forward", str(script), 8, user=True)]
    assert read_named_sources(frames, script.stat().st_mtime)
    assert not read_named_sources(frames, script.stat().st_mtime - 1)
