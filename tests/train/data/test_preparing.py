"""Preparing: what is kept, what is refused, and what is left after a failure."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from rankscope.cli import main  # noqa: E402
from rankscope.errors import DamagedDataset, DataError, NoRoom, UsageError  # noqa: E402
from rankscope.train.config import DataConfig, DataSamplingConfig, ModelConfig, RunConfig  # noqa: E402
from rankscope.train.data import PreparedDataset, open_prepared, prepare  # noqa: E402
from rankscope.train.data import corpus as corpora  # noqa: E402


def _config(folder: Path, *paths: Path, context: int = 16, samples: int | None = None, **data: Any) -> RunConfig:
    given: dict[str, Any] = {"source": "text", "tokenizer": "bytes", "workers": 1, "cache_dir": str(folder / "cache")}
    return RunConfig(
        model=ModelConfig(context_length=context),
        data=DataConfig(paths=tuple(map(str, paths)), **{**given, **data}),
        data_sampling=DataSamplingConfig(n_samples=samples),
    )


def _tokens(prepared: PreparedDataset) -> Any:
    return np.fromfile(prepared.tokens_path, dtype=prepared.manifest.dtype)


def _text(folder: Path, content: bytes | str = "one line\n" * 200, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _quiet(_line: str) -> None:
    return


def _left(folder: Path) -> list[str]:
    """What preparations left in the cache, locks and remembered fingerprints aside."""
    cache = folder / "cache"
    return (
        sorted(each.name for each in cache.iterdir() if each.suffix not in (".lock", ".json")) if cache.exists() else []
    )


# What is kept


def test_all_bytes_of_all_files_are_there_in_order_each_file_ended(tmp_path: Path) -> None:
    first, second = _text(tmp_path, b"abc" * 30, "a.txt"), _text(tmp_path, b"\xff\xfe" * 30, "b.txt")
    prepared = prepare(_config(tmp_path, tmp_path / "*.txt"), _quiet)
    expected = [*first.read_bytes(), 256, *second.read_bytes(), 256]
    assert _tokens(prepared).tolist() == expected
    assert prepared.manifest.documents == 2
    assert prepared.manifest.samples == (len(expected) - 1) // 16


def test_a_line_longer_than_the_context_goes_on_in_the_next_sample(tmp_path: Path) -> None:
    path = _text(tmp_path, "x" * 1000 + "\n")
    prepared = prepare(_config(tmp_path, path), _quiet)
    assert prepared.manifest.samples == 62
    assert bytes(_tokens(prepared)[:-1].tolist()) == path.read_bytes()


def test_files_in_many_pieces_of_work_give_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(corpora, "PART_BYTES", 700)
    lines = "".join(f"def f{n}(x):\n\n    return 'it''s' + \"naïve {n}\"  # 日本 {n * n}\n" for n in range(120))
    path = _text(tmp_path, lines)
    config = _config(tmp_path, path, tokenizer="bpe", tokenizer_vocab_size=300, workers=2)
    prepared = prepare(config, _quiet)
    assert prepared.tokenizer_path is not None
    tokenizer = tokenizers.Tokenizer.from_file(str(prepared.tokenizer_path))
    assert _tokens(prepared)[:-1].tolist() == tokenizer.encode(lines, add_special_tokens=False).ids


def test_json_lines_and_parquet_give_the_same_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [f"document {n}, ünïcode\nand a second line" for n in range(40)]
    lines = _text(tmp_path, "\n\n".join(json.dumps({"body": text, "id": 1}) for text in texts), "a.jsonl")
    table = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": texts}), table, row_group_size=7)
    from_lines = prepare(_config(tmp_path, lines, source="jsonl", text_field="body"), _quiet)
    from_table = prepare(_config(tmp_path, table, source="parquet", text_field="body"), _quiet)
    expected = [token for text in texts for token in [*text.encode(), 256]]
    assert _tokens(from_lines).tolist() == _tokens(from_table).tolist() == expected
    assert from_lines.folder != from_table.folder


def test_a_dataset_of_the_hub_is_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["first row", "second row"] * 20})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_given, **_named: rows)
    prepared = prepare(_config(tmp_path, source="hf", name="somebody/something"), _quiet)
    assert prepared.manifest.documents == 40
    assert _tokens(prepared)[:10].tolist() == [*b"first row", 256]


def test_the_sample_count_is_exact_and_the_rest_is_not_read(tmp_path: Path) -> None:
    prepared = prepare(_config(tmp_path, _text(tmp_path), samples=5), _quiet)
    assert (prepared.manifest.samples, prepared.manifest.tokens) == (5, 81)


def test_the_key_covers_content_tokenizer_context_and_samples_but_not_names(tmp_path: Path) -> None:
    path = _text(tmp_path)
    config = _config(tmp_path, path)
    first = prepare(config, _quiet)
    same = _text(tmp_path, path.read_bytes(), "other_name.txt")
    assert prepare(_config(tmp_path, same), _quiet).folder == first.folder
    others = [
        _config(tmp_path, path, context=17),
        _config(tmp_path, path, samples=3),
        _config(tmp_path, _text(tmp_path, path.read_bytes() + b"!", "more.txt")),
    ]
    keys = {prepare(each, _quiet).manifest.key for each in others}
    assert len(keys | {first.manifest.key}) == 4


def test_a_changed_file_is_noticed_though_its_size_is_the_same(tmp_path: Path) -> None:
    path = _text(tmp_path, "a" * 100)
    first = prepare(_config(tmp_path, path), _quiet)
    path.write_text("b" * 100)
    assert prepare(_config(tmp_path, path), _quiet).folder != first.folder


def test_the_builtin_corpus_needs_no_network_and_is_found_again(tmp_path: Path) -> None:
    said: list[str] = []
    config = replace(_config(tmp_path, source="builtin", samples=64))
    first = prepare(config, said.append)
    assert prepare(config, said.append).folder == first.folder
    assert sum("preparing" in line for line in said) == 1
    assert "prepared before" in said[-1]


# What is refused: one line, exit code 2, nothing left that looks complete


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main(["prepare", *arguments]) == code
    err = capsys.readouterr().err
    return next(line for line in reversed(err.splitlines()) if line)


def _arguments(folder: Path, **values: str) -> list[str]:
    given = {"source": "text", "tokenizer": "bytes", "workers": "1", "cache_dir": str(folder / "cache"), **values}
    keys = [f"data.{key}={value}" for key, value in given.items()] + ["model.context_length=16"]
    return [part for key in keys for part in ("--override", key)]


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
    path = _text(tmp_path, content)
    line = _refused(_arguments(tmp_path, paths=str(path), **values), capsys)
    assert line.startswith("rankscope: ")
    assert expected in line
    assert [name for name in _left(tmp_path) if name != "tokenizers"] == []


def test_non_utf8_bytes_met_while_encoding_are_named_with_their_place(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(path))
    config = _config(tmp_path, _text(tmp_path, b"a\n" * 20 + b"\xe9"), tokenizer="file", tokenizer_file=str(path))
    with pytest.raises(DataError, match=r"text\.txt, line 21: byte 0xe9 at offset 40 is not UTF-8"):
        prepare(config, _quiet)
    assert _left(tmp_path) == []


def test_no_matching_file_a_folder_and_a_packed_file_are_refused(tmp_path: Path) -> None:
    for path, expected in [
        (tmp_path / "*.none", "no file is called"),
        (tmp_path, "is a folder"),
        (_text(tmp_path, b"x", "a.txt.gz"), "unpack it first"),
    ]:
        with pytest.raises(DataError, match=expected):
            prepare(_config(tmp_path, path), _quiet)


def test_a_vocabulary_larger_than_the_embedding_is_refused_before_any_work(tmp_path: Path) -> None:
    config = _config(tmp_path, _text(tmp_path))
    config = replace(config, model=replace(config.model, vocab_size=256))
    with pytest.raises(UsageError, match=r"model\.vocab_size is 256, but the tokenizer has 257"):
        prepare(config, _quiet)
    assert _left(tmp_path) == []


def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = _text(tmp_path, "{", "tokenizer.json")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        prepare(_config(tmp_path, _text(tmp_path), tokenizer="file", tokenizer_file=str(path)), _quiet)


def test_help_and_mistakes_need_no_numpy_and_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rankscope.cli import main; main(['prepare', '--show-config', '--debug']);"
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=60)


# Damage


@pytest.mark.parametrize("damage", ["flip", "shorten", "manifest", "number", "no tokens"])
def test_a_damaged_cache_is_noticed_and_built_again(tmp_path: Path, damage: str) -> None:
    config = _config(tmp_path, _text(tmp_path))
    first = prepare(config, _quiet)
    content, manifest = first.tokens_path.read_bytes(), first.folder / "manifest.json"
    if damage == "flip":
        first.tokens_path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif damage == "shorten":
        first.tokens_path.write_bytes(content[:-2])
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:40])
    elif damage == "number":
        manifest.write_bytes(manifest.read_bytes().replace(b'"vocab_size": 257', b'"vocab_size": 256'))
    else:
        first.tokens_path.unlink()
    if damage not in ("flip",):
        with pytest.raises(DamagedDataset):
            open_prepared(first.folder)
    said: list[str] = []
    assert prepare(config, said.append).tokens_path.read_bytes() == content
    assert any("building it again" in line for line in said)


def test_a_damaged_trained_tokenizer_is_trained_again(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    config = _config(tmp_path, _text(tmp_path), tokenizer="bpe", tokenizer_vocab_size=300)
    first = prepare(config, _quiet)
    (kept,) = (tmp_path / "cache/tokenizers").glob("*.json")
    kept.write_bytes(kept.read_bytes()[:100])
    assert prepare(config, _quiet).folder == first.folder


# Failures in the middle

STOPS_HALFWAY = """
import sys, time
from pathlib import Path
from rankscope.train.config import *
from rankscope.train.data import prepare

def halfway(done, total, tokens):
    print("halfway", flush=True)
    time.sleep(600)

prepare(RunConfig(model=ModelConfig(context_length=16), data=DataConfig(source="text", tokenizer="bytes", workers=1,
        paths=(sys.argv[1],), cache_dir=sys.argv[2])), print, halfway)
"""


def test_a_killed_preparation_leaves_nothing_that_looks_complete_and_no_process(tmp_path: Path) -> None:
    path = _text(tmp_path)
    job = subprocess.Popen(
        [sys.executable, "-c", STOPS_HALFWAY, str(path), str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    while "halfway" not in (line := job.stdout.readline()):
        assert line, "it ended before it was half way"
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    job.send_signal(signal.SIGKILL)
    job.wait()
    job.stdout.close()
    (left,) = _left(tmp_path)
    assert ".building-" in left
    for child in children:
        _wait_until_gone(int(child))
    prepared = prepare(_config(tmp_path, path), _quiet)
    assert _left(tmp_path) == [prepared.manifest.key]


def test_what_a_killed_preparation_of_another_dataset_left_is_removed_unless_it_is_held(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for key in ("gone", "busy"):
        (cache / f".{key}.building-1").mkdir(parents=True)
        (cache / f".{key}.lock").touch()
    with (cache / ".busy.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        prepared = prepare(_config(tmp_path, _text(tmp_path)), _quiet)
    assert _left(tmp_path) == [".busy.building-1", prepared.manifest.key]


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = _text(tmp_path)

    def change(_done: int, _total: int, _tokens: int) -> None:
        path.write_bytes(path.read_bytes().upper())

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(_config(tmp_path, path), _quiet, change)
    assert _left(tmp_path) == []


def test_files_in_the_current_folder_do_not_take_the_place_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("msgspec.py", "numpy.py", "tokenizers.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    assert prepare(_config(tmp_path, _text(tmp_path)), _quiet).manifest.documents == 1


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from rankscope.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_one_line_and_nothing_older_is_lost(tmp_path: Path) -> None:
    older = prepare(_config(tmp_path, _text(tmp_path, "older\n" * 100, "older.txt")), _quiet)
    path = _text(tmp_path, "text\n" * 100_000)
    arguments = _arguments(tmp_path, paths=str(path))
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, "prepare", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == NoRoom.exit_code == 74
    assert "File too large" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert _left(tmp_path) == [older.manifest.key]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    config = _config(tmp_path, _text(tmp_path), cache_dir=str(_text(tmp_path, "a file", "cache")))
    with pytest.raises(UsageError, match=r"write another data\.cache_dir"):
        prepare(config, _quiet)


# Two jobs at once


def test_the_second_job_waits_and_says_so(tmp_path: Path) -> None:
    path = _text(tmp_path)
    prepared = prepare(_config(tmp_path, path), _quiet)
    hidden = tmp_path / "hidden"
    prepared.folder.rename(hidden)
    (lock,) = (tmp_path / "cache").glob(".*.lock")
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"{os.getpid()}\n")
        held.flush()
        job = subprocess.Popen(
            [sys.executable, "-m", "rankscope", "prepare", *_arguments(tmp_path, paths=str(path))],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert job.stderr is not None
        assert f"process {os.getpid()} is preparing this dataset: waiting for it" in job.stderr.readline()
        hidden.rename(prepared.folder)
    rest = job.stderr.read()
    job.stderr.close()
    assert job.wait() == 0
    assert "prepared before" in rest


def test_of_jobs_started_together_one_builds_and_all_get_it(tmp_path: Path) -> None:
    path = _text(tmp_path, "text\n" * 50_000)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "rankscope", "prepare", *_arguments(tmp_path, paths=str(path))],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert sum(text.count("rankscope: preparing") for text in said) == 1
    assert len(_left(tmp_path)) == 1
