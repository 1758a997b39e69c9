"""Dumps of other people: whatever is wrong with a file, it is refused by name and the rest still counts."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import flight_dumps as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import EvidenceError
from rankscope.evidence.readers import dump_files, dumps
from rankscope.evidence.readers.columns import KindTable
from rankscope.evidence.readers.dump_files import read_dumps
from rankscope.evidence.readers.dumps import NEWEST, kept_calls, rank_dumps, rank_in_name
from rankscope.evidence.readers.gather import gather
from rankscope.evidence.readers.kinds import HEAD
from rankscope.evidence.readers.middle import without_middle
from rankscope.evidence.readers.record import read_json, read_pickle
from rankscope.report.conclude import conclude
from searching import searched
from torch_pickle import torch_pickle

WAITING = (make.call(1), make.call(2), make.call(3, line=20, done=False))
BEHIND = (make.call(1), make.call(2))


class Dangerous:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ranks 0, 1 and 3 wait in a call that rank 2 has not entered."""
    path = tmp_path / "dumps"
    path.mkdir()
    for rank in range(4):
        make.write(path, rank, *(BEHIND if rank == 2 else WAITING))
    return path


def refused(folder: Path) -> str:
    evidence = gather([str(folder)])
    verdict = conclude(evidence)
    assert [culprit.rank for culprit in verdict.culprits] == [2], verdict.headline
    assert verdict.refused == evidence.refused
    (only,) = evidence.refused
    return only


def test_a_pickle_that_would_run_code_is_refused_by_name_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "made-by-the-pickle"
    (folder / "nccl_trace_rank_4").write_bytes(pickle.dumps(Dangerous(trap), protocol=2))
    why = refused(folder)
    assert "nccl_trace_rank_4" in why
    assert "mkdir" in why
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n \n", "only blanks"),
        (b"\x80\x02}q\x00X\x07\x00\x00\x00versionq", "cut off"),
        (b"\x80\x02\xff\xfe garbage", "not a valid pickle"),
        (pickle.dumps([1, 2, 3], protocol=2), "not a dictionary"),
        (pickle.dumps({"version": "2.10"}, protocol=2), "no entries"),
        (pickle.dumps({"entries": [{"profiling_name": 7}]}, protocol=2), "profiling_name"),
        (pickle.dumps({"entries": [{**make.call(1), "state": "levitating"}]}, protocol=2), "levitating"),
        (b'{"pg_config": {}, "entries": [{]}', "not valid JSON"),
        (b"\x1f\x8b\x08\x00rest", "gunzip"),
        (b"PK\x03\x04" + bytes(100), "zip"),
        (bytes(range(8)) * 2000, "binary"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"\x80\x02" + b"]" + b"r\xff\xff\xff\x7f" + b".", "memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_spoiled_file_is_refused_by_name_and_the_rest_diagnosed(folder: Path, content: bytes, words: str) -> None:
    (folder / "nccl_trace_rank_9").write_bytes(content)
    why = refused(folder)
    assert "nccl_trace_rank_9" in why
    assert words in why


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02}(", "1024 MB"),
        (b'{"pg_config": {}, "entries": [', "1024 MB"),
        (b"Process 7: python train.py\nPython v3.11.7 (/usr/bin/python)\n\n", "256 MB"),
        (b'{"message": {"message": "', "256 MB"),
    ],
    ids=["pickle", "JSON", "stacks", "error file"],
)
def test_a_gigantic_file_is_refused_by_name_without_being_read(folder: Path, content: bytes, words: str) -> None:
    path = folder / "nccl_trace_rank_9"
    path.write_bytes(content + b" " * HEAD)
    os.truncate(path, 1 << 40)
    why = refused(folder)
    assert "nccl_trace_rank_9" in why
    assert words in why


@pytest.mark.parametrize("encode", [lambda dump: json.dumps(dump).encode(), torch_pickle], ids=["JSON", "pickle"])
def test_text_that_is_no_utf8_is_refused_by_name(folder: Path, encode: Callable[[dict[str, Any]], bytes]) -> None:
    data = encode(make.dump(*WAITING, shift_ns=9))
    (folder / "nccl_trace_rank_9").write_bytes(data.replace(b"/home/me", b"/home/\xff\xfe"))
    assert "nccl_trace_rank_9" in refused(folder)


def test_where_the_dump_of_a_rank_is_cut_off_nobody_is_blamed_in_its_place(folder: Path) -> None:
    path = folder / "nccl_trace_rank_1"
    path.write_bytes(path.read_bytes()[:-400])
    verdict = conclude(gather([str(folder)]))
    assert "nccl_trace_rank_1" in str(verdict.refused)
    assert (verdict.outcome, verdict.certainty, verdict.culprits) == ("hang", "possible", ())
    assert "of rank 1 there is no dump" in verdict.headline


def test_a_dump_named_after_a_rank_that_the_job_does_not_have_is_refused(folder: Path) -> None:
    make.write(folder, 7, *WAITING, ranks=4)
    assert "ranks 0-3" in refused(folder)


def test_dumps_of_a_recorder_that_recorded_nothing_are_no_damage_and_tell_nothing(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"fr_trace_{rank}").write_bytes(pickle.dumps(make.dump() | {"entries": None}, protocol=2))
    evidence = gather([str(tmp_path)])
    verdict = conclude(evidence)
    assert (evidence.refused, verdict.outcome, verdict.culprits) == ((), "unknown", ())


def test_a_copy_under_another_rank_is_refused(folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "trace_rank_1").write_bytes((folder / "nccl_trace_rank_0").read_bytes())
    assert "a copy" in refused(folder)


def test_of_two_dumps_of_a_rank_the_newer_counts(folder: Path) -> None:
    early = folder / "early"
    early.mkdir()
    make.write(early, 0, make.call(1), make.call(2, done=False))
    why = refused(folder)
    assert os.path.join("early", "nccl_trace_rank_0") in why
    assert "older" in why


def test_a_dump_whose_rank_nothing_tells_is_refused(folder: Path) -> None:
    (folder / "trace").write_bytes(pickle.dumps(make.dump(*WAITING, shift_ns=99), protocol=2))
    assert "which rank" in refused(folder)


def test_messages_show_a_dump_that_is_named_after_another_rank(folder: Path) -> None:
    send = make.call(3, op="send 0->1", line=30, is_p2p=True)
    (folder / "nccl_trace_rank_3").write_bytes(pickle.dumps(make.dump(*BEHIND, send), protocol=2))
    assert "those of rank 0" in str(gather([str(folder)]).refused)


def test_pipes_and_links_to_nowhere_are_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "nccl_trace_rank_8")
    (folder / "nccl_trace_rank_9").symlink_to("nowhere")
    evidence = gather([str(folder)])
    assert len(evidence.refused) == 2
    assert [culprit.rank for culprit in conclude(evidence).culprits] == [2]


def test_where_nothing_but_refused_files_is_given_they_are_named_and_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"\x80\x02")
    evidence = gather([str(tmp_path)])
    assert evidence.ranks == ()
    assert "rank_0" in str(evidence.refused)
    verdict = conclude(evidence)
    assert (verdict.outcome, verdict.cause) == ("unknown", None)
    assert "rank_0" in str(verdict.because)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/x/nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12.pickle", 12),
        ("dump-7.json", 7),
        ("/jobs/rank4/trace", 4),
        ("trace", None),
        ("trace_20261115021233", None),
    ],
)
def test_rank_of_a_file_by_its_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted(make.call(1)))


@searched(150)
@given(field=FIELDS, value=VALUES)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    entries = [make.call(1), {**make.call(2), field: value}, make.call(3, done=False)]
    for read, data in ((read_pickle, pickle.dumps(make.dump(make.call(1)) | {"entries": entries})),):
        try:
            columns = read(data, table := KindTable())
        except EvidenceError:
            continue
        kept_calls({0: columns}, table.kinds)


@searched(150)
@given(st.binary(max_size=200), st.integers(0, 3000), st.integers(0, 3000))
def test_bytes_in_the_middle_of_a_dump_never_raise_anything_else(middle: bytes, start: int, length: int) -> None:
    data = pickle.dumps(make.dump(*WAITING), protocol=2)
    spoiled = data[:start] + middle + data[start + length :]
    for read in (read_pickle, read_json):
        try:
            read(spoiled, KindTable())
        except EvidenceError:
            continue


def test_calls_that_all_ranks_made_alike_are_left_out_of_a_large_job(tmp_path: Path) -> None:
    ranks = 60
    for rank in range(ranks):
        alike = [make.call(seq, line=10 + seq % 7) for seq in range(1, 900)]
        last = make.call(900, line=50 if rank == 41 else 20, size=3 if rank == 41 else 8, done=False)
        make.write(tmp_path, rank, *alike, last, ranks=ranks)
    table, columns = read_dumps([str(tmp_path / f"nccl_trace_rank_{rank}") for rank in range(ranks)])
    read = {rank: each for rank, each in enumerate(columns) if not isinstance(each, str)}
    kept, enough = kept_calls(read, table.kinds)
    assert enough
    assert sum(map(len, kept.values())) < 60 * 900 / 4
    assert all(positions[-1] == 899 for positions in kept.values())
    verdict = conclude(gather([str(tmp_path)]))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("collective-skipped", [41])
    assert verdict.certainty == "proven"
    where = verdict.culprits[0].where
    assert where is not None
    assert where.line == 50


RECORDER = (
    b"\x80\x02}(X\x07\x00\x00\x00entriesq\x00](}(X\x06\x00\x00\x00framesq\x01](}(X\x04\x00\x00\x00nameq\x02X\x04\x00\x00\x00"
    b"stepq\x03X\x08\x00\x00\x00filenameq\x04X\x08\x00\x00\x00train.pyq\x05X\x04\x00\x00\x00lineq\x06K\x07uq\x07eX\t\x00\x00"
    b"\x00record_idq\x08K\x00u}(h\x01](h\x07eh\x08K\x01ueuq\t."
)
"""Two calls in the bytes of torch's pickler, cut down to what shows how it refers back."""


def test_the_bytes_of_torchs_pickler_are_made_as_it_makes_them() -> None:
    assert torch_pickle(pickle.loads(RECORDER)) == RECORDER


def long_record(calls: int = 900, **changed: Any) -> dict[str, Any]:
    entries = [make.call(seq, line=10 + seq % 7) for seq in range(1, calls)]
    return make.dump(*entries, make.call(calls, line=50, done=False)) | changed


@pytest.mark.parametrize("encode", [torch_pickle, lambda dump: pickle.dumps(dump, protocol=2)])
def test_skipped_calls_change_nothing_in_the_others(encode: Callable[[dict[str, Any]], bytes]) -> None:
    data = encode(long_record())
    whole_table, short_table = KindTable(), KindTable()
    whole = read_pickle(data, whole_table)
    short = read_pickle(data, short_table, newest=40)
    assert (len(whole), whole.skipped, len(short), short.skipped) == (900, 0, 40, 860)
    assert short.first_ns == whole.first_ns
    assert [short.collective(at, short_table.kinds[short.kinds[at]]) for at in range(40)] == [
        whole.collective(at, whole_table.kinds[whole.kinds[at]]) for at in range(860, 900)
    ]


def test_a_call_in_the_middle_that_later_ones_refer_to_is_kept() -> None:
    entries = [make.call(seq, line=10, function="early" if seq < 300 else "late") for seq in range(1, 901)]
    data = torch_pickle(make.dump(*entries))
    short = without_middle(data, 40)
    assert short is not None
    assert (short.calls, short.total) == (42, 900)
    read = read_pickle(data, table := KindTable(), newest=40)
    assert {frame.function for kind in table.kinds for frame in kind.frames} == {"late", "<module>"}
    assert (len(read), read.skipped) == (40, 860)


def unfinished_early(entries: list[dict[str, Any]]) -> None:
    entries[100] |= {"retired": False, "state": "started"}


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda entries: entries[200].update(profiling_name="nccl:send 0->1", is_p2p=True), 900),
        (lambda entries: entries[300].update(process_group=("7", "rare"), pg_id=7), 900),
        (lambda entries: entries.reverse(), 900),
        (lambda entries: [entry.update(profiling_name="gloo:all_reduce") for entry in entries], 40),
        (lambda entries: [entry.pop("pg_id") for entry in entries], 900),
    ],
    ids=["messages", "a rare group", "another order", "gloo", "an older version"],
)
def test_a_record_of_another_form_is_looked_at_as_far_as_it_matters(spoil: Any, expected: int) -> None:
    dump = long_record()
    spoil(dump["entries"])
    for number, entry in enumerate(dump["entries"]):
        entry["collective_seq_id"] = number // 2
    assert len(read_pickle(torch_pickle(dump), KindTable(), newest=40)) == expected


def test_an_unfinished_call_long_ago_is_never_skipped() -> None:
    dump = long_record()
    for entry in dump["entries"]:
        entry["profiling_name"] = "gloo:all_reduce"
    unfinished_early(dump["entries"])
    read = read_pickle(torch_pickle(dump), KindTable(), newest=40)
    assert (read.skipped, read.flags[0]) == (100, 1)


@searched(150)
@given(st.binary(max_size=40), st.integers(0, 40_000), st.integers(0, 3000))
def test_a_spoiled_record_is_never_read_otherwise_for_being_short(middle: bytes, start: int, length: int) -> None:
    data = torch_pickle(long_record(200))
    spoiled = data[:start] + middle + data[start + length :]
    try:
        short = read_pickle(spoiled, KindTable(), newest=40)
    except EvidenceError:
        with pytest.raises(EvidenceError):
            read_pickle(spoiled, KindTable())
        return
    try:
        whole = read_pickle(spoiled, KindTable())
    except EvidenceError:
        return  # what is wrong with it lies in what need not be read
    assert short.skipped + len(short) == len(whole)
    assert short.seqs == whole.seqs[short.skipped :]


def test_several_processes_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(make.write(tmp_path, rank, *WAITING)) for rank in range(12)]
    (tmp_path / "nccl_trace_rank_5").write_bytes(b"\x80\x02")
    _, alone = read_dumps(paths)
    monkeypatch.setattr(dump_files, "LARGE_JOB", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    _, together = read_dumps(paths)
    assert together == alone
    assert isinstance(together[5], str)


def test_where_skipped_calls_matter_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_files, "LARGE_JOB", 0)
    monkeypatch.setattr(dumps, "_KEEP_ALL", 1000)
    ranks = 4
    for rank in range(ranks):
        # One rank stands still while the others go on for long: they parted far back.
        calls = [make.call(seq, line=10 + seq % 7) for seq in range(1, 200 if rank == 2 else 800)]
        waiting = make.call(200, line=50, size=3, done=False) if rank == 2 else make.call(800, line=20, done=False)
        dump = make.dump(*calls, waiting, ranks=ranks, shift_ns=rank)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(torch_pickle(dump))
    paths = sorted(map(str, tmp_path.iterdir()))
    table, columns = read_dumps(paths, NEWEST)
    assert not rank_dumps(paths, columns, table).enough
    table, columns = read_dumps(paths)
    assert gather([str(tmp_path)]).ranks[2].collectives == rank_dumps(paths, columns, table).dumps[2].collectives
