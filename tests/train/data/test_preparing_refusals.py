"""Data that cannot be prepared: one line, exit code 2, nothing left that looks complete."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from preparations import left_in, overrides, quiet, run_config, text_file  # noqa: E402

from rankscope.cli import main  # noqa: E402
from rankscope.errors import DataError, UsageError  # noqa: E402
from rankscope.train.data import prepare  # noqa: E402


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main(["prepare", *arguments]) == code
    err = capsys.readouterr().err
    return next(line for line in reversed(err.splitlines()) if line)


@pytest.mark.parametrize(
    ("content", "values", "expected"),
    [
        (b"", {}, "the dataset is empty"),
        (b"short", {}, "gives only 6 tokens, and one sample needs 17"),
        (
            b"good\nbad \xff\n" * 9,
            {"tokenizer": "bpe", "tokenizer_vocab_size": "300"},
            "text.txt, line 2: byte 0xff at offset 9",
        ),
        (b"text " * 99, {"tokenizer": "file", "tokenizer_file": "none.json"}, "'none.json' does not exist"),
        (b"text " * 99, {"tokenizer": "bpe", "tokenizer_vocab_size": "100"}, "write at least 257"),
        (
            b'{"text": "a"}\n{"body": "b"}',
            {"source": "jsonl"},
            "line 2: no text in the field 'text' (its fields are body)",
        ),
        (b'{"text": "a"}\n{"text', {"source": "jsonl"}, "line 2: not JSON"),
        (b"\n\n", {"source": "jsonl"}, "the dataset is empty"),
        (b"PAR", {"source": "parquet"}, "is not a parquet file"),
    ],
)
def test_data_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, values: dict[str, str], expected: str
) -> None:
    if values.get("tokenizer", "bytes") != "bytes":
        pytest.importorskip("tokenizers")
    if values.get("source") == "parquet":
        pytest.importorskip("pyarrow")
    path = text_file(tmp_path, content)
    line = _refused(overrides(tmp_path, paths=str(path), **values), capsys)
    assert line.startswith("rankscope: ")
    assert expected in line
    assert [name for name in left_in(tmp_path) if name != "tokenizers"] == []


def test_non_utf8_bytes_met_while_encoding_are_named_with_their_place(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(path))
    config = run_config(
        tmp_path, text_file(tmp_path, b"a\n" * 20 + b"\xe9"), tokenizer="file", tokenizer_file=str(path)
    )
    with pytest.raises(DataError, match=r"text\.txt, line 21: byte 0xe9 at offset 40 is not UTF-8"):
        prepare(config, quiet)
    assert left_in(tmp_path) == []


def test_no_matching_file_a_folder_and_a_packed_file_are_refused(tmp_path: Path) -> None:
    for path, expected in [
        (tmp_path / "*.none", "no file is called"),
        (tmp_path, "is a folder"),
        (text_file(tmp_path, b"x", "a.txt.gz"), "unpack it first"),
    ]:
        with pytest.raises(DataError, match=expected):
            prepare(run_config(tmp_path, path), quiet)


def test_a_vocabulary_larger_than_the_embedding_is_refused_before_any_work(tmp_path: Path) -> None:
    config = run_config(tmp_path, text_file(tmp_path))
    config = replace(config, model=replace(config.model, vocab_size=256))
    with pytest.raises(UsageError, match=r"model\.vocab_size is 256, but the tokenizer has 257"):
        prepare(config, quiet)
    assert left_in(tmp_path) == []


def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = text_file(tmp_path, "{", "tokenizer.json")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        prepare(run_config(tmp_path, text_file(tmp_path), tokenizer="file", tokenizer_file=str(path)), quiet)


def test_help_and_mistakes_need_no_numpy_and_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rankscope.cli import main; main(['prepare', '--show-config', '--debug']);"
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=60)
