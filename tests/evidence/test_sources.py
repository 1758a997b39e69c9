"""The user's files are kept whole, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.evidence.model import Frame
from rankscope.evidence.sources import MAX_BYTES, read_sources


def frame(path: Path | str, *, user: bool = True) -> Frame:
    return Frame("main", str(path), 1, user)


def test_each_user_file_comes_once_in_order_and_whole(tmp_path: Path) -> None:
    first, second = tmp_path / "train.py", tmp_path / "data.py"
    first.write_text("import data\n\ndata.load()\n")
    second.write_text("def load():\n    pass\n")
    library = tmp_path / "library.py"
    library.write_text("x = 1\n")
    sources = read_sources([frame(first), frame(library, user=False), frame(second), frame(first)])
    assert [(source.file, source.first_line) for source in sources] == [(str(first), 1), (str(second), 1)]
    assert sources[0].text == "import data\n\ndata.load()\n"


def test_secrets_are_masked_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b'import wandb\r\nwandb.login(key="0123abcd")\r\nrun(\xff)\r\n')
    (source,) = read_sources([frame(path)])
    assert source.text.split("\n") == ["import wandb", 'wandb.login(key="***")', "run(\ufffd)", ""]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    large = tmp_path / "large.py"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    exact = tmp_path / "exact.py"
    exact.write_bytes(b"#" * MAX_BYTES)
    names: list[Path | str] = [
        tmp_path / "fifo.py",
        tmp_path / "missing.py",
        tmp_path,
        large,
        exact,
        "zero\0.py",
    ]
    assert [source.file for source in read_sources(map(frame, names))] == [str(exact)]
