"""Preparing: what is kept, under which key, and what is noticed when it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from preparations import quiet, run_config, text_file, tokens_of  # noqa: E402

from rankscope.errors import DamagedDataset  # noqa: E402
from rankscope.train.data import corpus as corpora  # noqa: E402
from rankscope.train.data import open_prepared, prepare  # noqa: E402


def test_all_bytes_of_all_files_are_there_in_order_each_file_ended(tmp_path: Path) -> None:
    first, second = text_file(tmp_path, b"abc" * 30, "a.txt"), text_file(tmp_path, b"\xff\xfe" * 30, "b.txt")
    prepared = prepare(run_config(tmp_path, tmp_path / "*.txt"), quiet)
    expected = [*first.read_bytes(), 256, *second.read_bytes(), 256]
    assert tokens_of(prepared).tolist() == expected
    assert prepared.manifest.documents == 2
    assert prepared.manifest.samples == (len(expected) - 1) // 16


def test_a_line_longer_than_the_context_goes_on_in_the_next_sample(tmp_path: Path) -> None:
    path = text_file(tmp_path, "x" * 1000 + "\n")
    prepared = prepare(run_config(tmp_path, path), quiet)
    assert prepared.manifest.samples == 62
    assert bytes(tokens_of(prepared)[:-1].tolist()) == path.read_bytes()


def test_files_in_many_pieces_of_work_give_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(corpora, "PART_BYTES", 700)
    lines = "".join(f"def f{n}(x):\n\n    return 'it''s' + \"naïve {n}\"  # 日本 {n * n}\n" for n in range(120))
    path = text_file(tmp_path, lines)
    config = run_config(tmp_path, path, tokenizer="bpe", tokenizer_vocab_size=300, workers=2)
    prepared = prepare(config, quiet)
    assert prepared.tokenizer_path is not None
    tokenizer = tokenizers.Tokenizer.from_file(str(prepared.tokenizer_path))
    assert tokens_of(prepared)[:-1].tolist() == tokenizer.encode(lines, add_special_tokens=False).ids


def test_json_lines_and_parquet_give_the_same_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [f"document {n}, ünïcode\nand a second line" for n in range(40)]
    lines = text_file(tmp_path, "\n\n".join(json.dumps({"body": text, "id": 1}) for text in texts), "a.jsonl")
    table = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": texts}), table, row_group_size=7)
    from_lines = prepare(run_config(tmp_path, lines, source="jsonl", text_field="body"), quiet)
    from_table = prepare(run_config(tmp_path, table, source="parquet", text_field="body"), quiet)
    expected = [token for text in texts for token in [*text.encode(), 256]]
    assert tokens_of(from_lines).tolist() == tokens_of(from_table).tolist() == expected
    assert from_lines.folder != from_table.folder


def test_a_dataset_of_the_hub_is_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["first row", "second row"] * 20})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_given, **_named: rows)
    prepared = prepare(run_config(tmp_path, source="hf", name="somebody/something"), quiet)
    assert prepared.manifest.documents == 40
    assert tokens_of(prepared)[:10].tolist() == [*b"first row", 256]


def test_the_sample_count_is_exact_and_the_rest_is_not_read(tmp_path: Path) -> None:
    prepared = prepare(run_config(tmp_path, text_file(tmp_path), samples=5), quiet)
    assert (prepared.manifest.samples, prepared.manifest.tokens) == (5, 81)


def test_the_key_covers_content_tokenizer_context_and_samples_but_not_names(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    config = run_config(tmp_path, path)
    first = prepare(config, quiet)
    same = text_file(tmp_path, path.read_bytes(), "other_name.txt")
    assert prepare(run_config(tmp_path, same), quiet).folder == first.folder
    others = [
        run_config(tmp_path, path, context=17),
        run_config(tmp_path, path, samples=3),
        run_config(tmp_path, text_file(tmp_path, path.read_bytes() + b"!", "more.txt")),
    ]
    keys = {prepare(each, quiet).manifest.key for each in others}
    assert len(keys | {first.manifest.key}) == 4


def test_a_changed_file_is_noticed_though_its_size_is_the_same(tmp_path: Path) -> None:
    path = text_file(tmp_path, "a" * 100)
    first = prepare(run_config(tmp_path, path), quiet)
    path.write_text("b" * 100)
    assert prepare(run_config(tmp_path, path), quiet).folder != first.folder


def test_the_builtin_corpus_needs_no_network_and_is_found_again(tmp_path: Path) -> None:
    said: list[str] = []
    config = replace(run_config(tmp_path, source="builtin", samples=64))
    first = prepare(config, said.append)
    assert prepare(config, said.append).folder == first.folder
    assert sum("preparing" in line for line in said) == 1
    assert "prepared before" in said[-1]


@pytest.mark.parametrize("damage", ["flip", "shorten", "manifest", "number", "no tokens"])
def test_a_damaged_cache_is_noticed_and_built_again(tmp_path: Path, damage: str) -> None:
    config = run_config(tmp_path, text_file(tmp_path))
    first = prepare(config, quiet)
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
    config = run_config(tmp_path, text_file(tmp_path), tokenizer="bpe", tokenizer_vocab_size=300)
    first = prepare(config, quiet)
    (kept,) = (tmp_path / "cache/tokenizers").glob("*.json")
    kept.write_bytes(kept.read_bytes()[:100])
    assert prepare(config, quiet).folder == first.folder
