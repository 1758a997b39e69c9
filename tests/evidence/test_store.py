"""Evidence and verdicts survive the way to the disk and back; a full disk costs detail, not everything."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from rankscope.diagnosis.codec import verdict_from_json, verdict_to_json
from rankscope.diagnosis.verdict import Culprit, Verdict, Where
from rankscope.errors import EvidenceError
from rankscope.evidence.communicators import CommMember
from rankscope.evidence.model import (
    SCHEMA,
    Call,
    ChildProcess,
    Collective,
    Evidence,
    Frame,
    HostEvidence,
    Progress,
    RankEvidence,
    Source,
    Thread,
)
from rankscope.evidence.store import FILE_NAME, load_evidence, save_evidence
from searching import searched

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(-(2**40), 2**40))
st.register_type_strategy(str, st.text(max_size=8))

SITE = (Frame("step", "train.py", 12, user=True),)


def call(index: int) -> Call:
    return Call(index, "all_reduce", "0", index, 1, 0, 1.0, None, False, index, -1, 8, "float32", SITE)


def collective(number: int) -> Collective:
    return Collective(number, "0", number, 0, "all_reduce", "gloo", False, "scheduled", False, 1.5, ((8,),))


def evidence(calls: int = 300, output: int = 100, source: int = 1000) -> Evidence:
    progress = Progress("step", 1.0, 3, 3, 2.0, 1, calls, tuple(map(call, range(calls))), ())
    rank = RankEvidence(
        0,
        0,
        "node-1",
        4121,
        1.0,
        progress=progress,
        collectives=tuple(map(collective, range(calls))),
        output_tail=("line of output",) * output,
        error_tail=("line of error",) * output,
    )
    sources = (Source("train.py", 1, "x" * source),)
    return Evidence(SCHEMA, 5.0, 1.0, "still", 1, (rank,), sources=sources, command=("train.py",))


def any_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Hypothesis would take what makes a default for the default itself."""
    made = {each.name: each.default_factory for each in fields(kind) if each.default_factory is not msgspec.NODEFAULT}
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: st.builds(make) | st.from_type(hints[name]) for name, make in made.items()})


for struct in (ChildProcess, CommMember, HostEvidence, RankEvidence, Evidence):
    st.register_type_strategy(struct, any_of(struct))


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond it, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@searched(25)
@given(st.from_type(Evidence))
def test_evidence_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, found: Evidence) -> None:
    folder = tmp_path_factory.mktemp("run")
    found = replace(found, schema=SCHEMA)
    save_evidence(found, folder)
    try:
        loaded = load_evidence(folder)
    except EvidenceError as error:
        assume("no job has so many" not in str(error))  # numbers that no rule should count up to
        raise
    assert loaded == found


def test_all_parts_of_the_model_are_kept(tmp_path: Path) -> None:
    save_evidence(evidence(), tmp_path)
    assert load_evidence(tmp_path / FILE_NAME) == evidence()


def test_the_file_and_a_new_folder_are_the_owners_alone(tmp_path: Path) -> None:
    save_evidence(evidence(), tmp_path / "runs" / "1")
    assert (tmp_path / "runs" / "1").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs" / "1" / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "runs" / "1") == [FILE_NAME]


def test_evidence_of_a_run_is_found_below_its_folder(tmp_path: Path) -> None:
    save_evidence(evidence(), tmp_path / "evidence")
    assert load_evidence(tmp_path) == evidence()


def test_text_that_utf8_cannot_say_does_not_cost_the_evidence(tmp_path: Path) -> None:
    save_evidence(replace(evidence(), command=("train-\udcff.py",)), tmp_path)
    assert load_evidence(tmp_path).command == ("train-\\udcff.py",)


@pytest.mark.parametrize(
    ("room", "left_out", "lengths"),
    [
        (1.00, set(), (1, 2000, 300)),
        (0.99, {"sources"}, (0, 2000, 300)),
        (0.64, {"sources", "output"}, (0, 0, 300)),
        (0.45, {"sources", "output", "200"}, (0, 0, 200)),
        (0.10, {"sources", "output", "200", "20"}, (0, 0, 20)),
    ],
)
def test_on_a_full_disk_the_least_important_goes_first(
    tmp_path: Path, room: float, left_out: set[str], lengths: tuple[int, int, int]
) -> None:
    whole = evidence(calls=300, output=2000, source=80_000)
    save_evidence(whole, tmp_path / "whole")
    size = (tmp_path / "whole" / FILE_NAME).stat().st_size
    with files_no_larger_than(int(size * room)):
        save_evidence(whole, tmp_path / "tight")
    kept = load_evidence(tmp_path / "tight")
    (rank,) = kept.ranks
    assert rank.progress is not None
    assert (len(kept.sources), len(rank.output_tail), len(rank.progress.calls)) == lengths
    newest = lengths[2]
    assert rank.progress.calls == tuple(map(call, range(300)))[-newest:]
    assert rank.collectives == tuple(map(collective, range(300)))[-newest:]
    named = " ".join([*kept.missing, *rank.missing]).split()
    assert {word for word in ("sources", "output", "200", "20") if word in named} == left_out


def test_with_no_room_at_all_the_error_names_file_and_reason_and_the_old_file_stays(tmp_path: Path) -> None:
    save_evidence(evidence(calls=1), tmp_path)
    with (
        files_no_larger_than(100),
        pytest.raises(EvidenceError, match=rf"{FILE_NAME} cannot be written: File too"),
    ):
        save_evidence(evidence(), tmp_path)
    assert load_evidence(tmp_path) == evidence(calls=1)
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EvidenceError, match=r"file/run/evidence\.json cannot be written: Not a directory"):
        save_evidence(evidence(), tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "holds no evidence.json"),
        (b"", "is empty"),
        (b'{"schema": 1, "collected_at": 5.0, "ran', "is damaged or cut off"),
        (b'{"schema": 99, "other": []}', "has schema 99; this version of rankscope reads schema 1"),
        (b'{"schema": 1}', "is not evidence of rankscope: .*collected_at"),
        (b"[1, 2]", "is not evidence of rankscope"),
        (b"\x80\x02}q", "is damaged or cut off"),
    ],
)
def test_bad_evidence_is_one_clear_reason(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(EvidenceError, match=problem):
        load_evidence(tmp_path)


def test_missing_evidence_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"nowhere.json does not exist"):
        load_evidence(tmp_path / "nowhere.json")


def test_defaults_fill_what_older_evidence_does_not_have(tmp_path: Path) -> None:
    save_evidence(evidence(), tmp_path)
    content = json.loads((tmp_path / FILE_NAME).read_text())
    del content["versions"], content["ranks"][0]["still_for_s"]
    content["of the future"] = 1
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    assert load_evidence(tmp_path) == evidence()


VERDICT = Verdict(
    schema=1,
    outcome="hang",
    cause="blocked-call",
    certainty="proven",
    culprits=(Culprit(2, "node-1", 4121, "rank", Where("train.py", 88, "push"), "waiting"),),
    victims=(0, 1, 3),
    headline="rank 2 of 4 is stuck",
    because=("it is",),
    fix=("give it a timeout",),
    detected_after_s=1.80049,
    world_size=4,
    started_at=1700000000.123456,
    exit_codes={10: None, 2: -9},
)


def test_a_verdict_is_written_in_the_contracts_order_with_three_digits() -> None:
    data = verdict_to_json(VERDICT)
    content = json.loads(data)
    assert list(content) == list(Verdict.__struct_fields__)
    assert list(content)[:4] == ["schema", "outcome", "cause", "certainty"]
    assert content["exit_codes"] == {"2": -9, "10": None}
    assert (content["detected_after_s"], content["started_at"]) == (1.8, 1700000000.123)
    assert data.startswith(b'{\n  "schema": 1,\n')
    assert data.endswith(b"}\n")


VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
FACTS = st.lists(st.dictionaries(st.text(max_size=20), VALUES | st.lists(VALUES, max_size=3), max_size=4), max_size=3)
"""Not of `Any`: any type at all would be drawn, with gigabytes of values."""


@searched(50)
@given(st.builds(Verdict, facts=FACTS.map(tuple)))
def test_a_verdict_comes_back_with_its_seconds_rounded(verdict: Verdict) -> None:
    verdict = replace(verdict, schema=1)
    again = verdict_from_json(verdict_to_json(verdict))
    assert verdict_to_json(again) == verdict_to_json(verdict)
    assert replace(again, detected_after_s=None, started_at=None, ended_at=None) == replace(
        verdict, detected_after_s=None, started_at=None, ended_at=None
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a verdict"),
        (b"{}", "not a verdict: .*schema"),
        (verdict_to_json(replace(VERDICT, schema=3)), "schema 3"),
        (verdict_to_json(VERDICT).replace(b'"hang"', b'"sleep"'), r"not a verdict: .*outcome"),
    ],
)
def test_what_is_no_verdict_is_an_error(data: bytes, problem: str) -> None:
    with pytest.raises(EvidenceError, match=problem):
        verdict_from_json(data)


def test_threads_and_frames_keep_their_order(tmp_path: Path) -> None:
    frames = tuple(Frame(name, "a.py", number, user=True) for number, name in enumerate("cab"))
    thread = Thread(1, "MainThread", True, frames)
    rank = replace(evidence().ranks[0], crash_stack=thread.frames)
    save_evidence(replace(evidence(), ranks=(rank,)), tmp_path)
    assert load_evidence(tmp_path).ranks[0].crash_stack == frames
