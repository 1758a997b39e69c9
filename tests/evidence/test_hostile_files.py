"""Small files that ask for endless time or memory, and names that lead to something that is no file."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import flight_dumps as make
import pytest

from rankscope.errors import EvidenceError
from rankscope.evidence.flight import as_shown, parse_flight_pickle
from rankscope.evidence.model import SCHEMA, Evidence, Group, RankEvidence
from rankscope.evidence.readers.gather import gather
from rankscope.evidence.readers.in_child import within
from rankscope.evidence.store import load_evidence, save_evidence


def doubled(times: int = 40) -> list[Any]:
    value: list[Any] = []
    for _ in range(times):
        value = [value, value]
    return value


def doubled_tuple(times: int = 40) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(times):
        value = (value, value)
    return value


def with_key_of_tuples() -> bytes:
    """Hashing the key would take years: it is pickled as two dictionaries, and joined by hand."""
    key = pickle.dumps(doubled_tuple(), protocol=2)[2:-1]
    return b"\x80\x02}" + key + b"K\x01s."


CALL = make.call(1)
HOSTILE = {
    "only lists": pickle.dumps(doubled(), protocol=2),
    "entries": pickle.dumps({"entries": doubled()}, protocol=2),
    "an entry": pickle.dumps({"entries": [doubled()]}, protocol=2),
    "groups": pickle.dumps({"entries": [CALL], "pg_config": {"0": doubled()}}, protocol=2),
    "ranks": pickle.dumps({"entries": [CALL], "pg_config": {"0": {"ranks": doubled(), "name": "0"}}}, protocol=2),
    "description": pickle.dumps(
        {"entries": [CALL], "pg_config": {"0": {"ranks": "[0]", "desc": doubled()}}}, protocol=2
    ),
    "status": pickle.dumps({"entries": [CALL], "pg_status": {"0": doubled()}}, protocol=2),
    "version": pickle.dumps({"entries": [CALL], "version": doubled()}, protocol=2),
    "pg_id": pickle.dumps({"entries": [{**CALL, "pg_id": doubled()}]}, protocol=2),
    "state": pickle.dumps({"entries": [{**CALL, "state": doubled_tuple()}]}, protocol=2),
    "frames": pickle.dumps({"entries": [{**CALL, "frames": [{"name": "f", "more": doubled()}]}] * 3}, protocol=2),
    "sizes": pickle.dumps({"entries": [{**CALL, "input_sizes": doubled()}]}, protocol=2),
    "group of a call": pickle.dumps({"entries": [{**CALL, "process_group": ["0", doubled()]}]}, protocol=2),
    "a key": with_key_of_tuples(),
    "large number": pickle.dumps({"entries": [{**CALL, "record_id": 1 << 200_000}]}, protocol=2),
    "large version": pickle.dumps({"entries": [CALL], "version": 1 << 200_000}, protocol=2),
    "large time": pickle.dumps({"entries": [{**CALL, "time_created_ns": -(1 << 200_000)}]}, protocol=2),
    "many ranks": pickle.dumps(
        {
            "entries": [CALL],
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(2_000_000)))}},
        },
        protocol=2,
    ),
    "far rank": pickle.dumps(
        {
            "entries": [CALL],
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 9223372036854775806]"}},
        },
        protocol=2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_dump_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("rankscope.evidence.readers.dump_files._LEAST_TIME_S", 3.0)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(HOSTILE[name])
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    evidence = gather([str(path)])
    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
    assert [text for text in evidence.refused if "nccl_trace_rank_0" in text] or name == "state", evidence.refused
    assert evidence.world_size <= 1


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - {"a key", "state", "version", "large version"}))
def test_the_same_from_a_living_rank(name: str) -> None:
    with pytest.raises(EvidenceError) as refused:
        parse_flight_pickle(HOSTILE[name])
    assert len(str(refused.value)) < 500


def test_a_value_is_shown_in_a_few_words_whatever_it_is() -> None:
    for value in (
        doubled(),
        doubled_tuple(),
        1 << 200_000,
        {"a": doubled()},
        "x" * 10**6,
        None,
        1.5,
        ValueError(doubled()),
    ):
        assert len(as_shown(value)) <= 60
    assert as_shown(7) == "7"
    assert as_shown(["a", 1]) == "['a', 1]"


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["diagnose"], ["diagnose", "--json"]])
def test_links_to_what_never_ends_are_refused_at_once(tmp_path: Path, verb: list[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    links = ["/proc/kmsg", "/dev/zero", "/proc/self/mem", str(pipe)]
    for number, target in enumerate(links):
        (tmp_path / f"rank{number}.log").symlink_to(target)
    (tmp_path / "evidence.json").symlink_to(pipe)
    (tmp_path / "verdict.json").symlink_to(pipe)
    for path in [tmp_path, *(tmp_path / f"rank{number}.log" for number in range(4)), tmp_path / "evidence.json"]:
        ended = subprocess.run(
            [sys.executable, "-m", "rankscope", *verb, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert "Traceback" not in ended.stderr
        assert ended.returncode != 0


def test_folders_that_lead_back_to_themselves_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"command": ["x"]}')
    for name in "abcdef":
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "rank0.log").write_text("hello\n")
    begun = time.monotonic()
    gather([str(tmp_path)])
    assert time.monotonic() - begun < 10


OF_A_RUN = {"run.json": '{"command": ["x"]}', "verdict.json": '{"outcome": "crash"}'}


@pytest.mark.parametrize("beside", [{}, OF_A_RUN], ids=["a folder", "a run"])
@pytest.mark.parametrize("link", ["rank0.log", "logs"])
def test_a_link_out_of_a_given_folder_is_not_followed(tmp_path: Path, beside: dict[str, str], link: str) -> None:
    mine, sent = tmp_path / "mine", tmp_path / "sent"
    for folder in (mine, sent):
        folder.mkdir()
    (mine / "rank0.log").write_text("words of mine alone\n")
    (sent / "rank1.log").write_text("ValueError: x\n")
    for name, text in beside.items():
        (sent / name).write_text(text)
    (sent / link).symlink_to(mine / "rank0.log" if link == "rank0.log" else mine)
    evidence = gather([str(sent)])
    assert "words of mine" not in str(evidence)
    assert "ValueError: x" in str(evidence)
    told = [text for text in evidence.refused if "leads out of the folder" in text]
    assert len(told) == (1 if link == "rank0.log" or beside else 0)  # of other folders, links are passed over


@pytest.mark.parametrize("name", ["evidence.json", "evidence/attempt_0/evidence.json", "verdict.json"])
def test_evidence_and_verdict_are_not_read_through_a_link_out_of_the_run(tmp_path: Path, name: str) -> None:
    mine, sent = tmp_path / "mine", tmp_path / "sent"
    save_evidence(Evidence(SCHEMA, 1.0, 0.0, "still", 4711, ()), mine)
    (mine / "verdict.json").write_text('{"outcome": "crash", "world_size": 4711}')
    (sent / name).parent.mkdir(parents=True)
    (sent / "run.json").write_text("{}")
    (sent / name).symlink_to(mine / Path(name).name)
    evidence = gather([str(sent)])
    assert evidence.world_size == 0
    assert any("leads out of the folder" in text for text in evidence.refused)


def test_links_that_stay_in_the_folder_or_are_named_themselves_are_followed(tmp_path: Path) -> None:
    (tmp_path / "sent" / "logs").mkdir(parents=True)
    (tmp_path / "sent" / "logs" / "kept").write_text("ValueError: x\n")
    (tmp_path / "sent" / "rank0.log").symlink_to("logs/kept")
    (tmp_path / "named").symlink_to("sent")
    for given in ("sent", "named", "named/rank0.log"):
        evidence = gather([str(tmp_path / given)])
        assert "ValueError: x" in str(evidence.ranks), given
        assert evidence.refused == ()


@pytest.mark.parametrize("world", [10**12, -5])
def test_saved_evidence_of_an_impossible_job_is_refused(tmp_path: Path, world: int) -> None:
    save_evidence(Evidence(SCHEMA, 1.0, 0.0, "still", world, ()), tmp_path)
    with pytest.raises(EvidenceError, match="no job has so many"):
        load_evidence(tmp_path)


def test_saved_evidence_with_an_impossible_group_is_refused(tmp_path: Path) -> None:
    rank = RankEvidence(0, 0, "h", 1, 0.0, groups=(Group("0", "default_pg", (0, 10**15)),))
    save_evidence(Evidence(SCHEMA, 1.0, 0.0, "still", 1, (rank,)), tmp_path)
    with pytest.raises(EvidenceError, match="no job has so many"):
        load_evidence(tmp_path)


@pytest.mark.parametrize("threads", [False, True], ids=["alone", "beside threads"])
def test_a_reader_that_does_not_end_is_ended(threads: bool) -> None:
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    if threads:
        beside.start()
    try:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            within(0.5, partial(hash, doubled_tuple()))
        assert time.monotonic() - begun < 10
        assert within(20.0, partial(str.__mul__, "answer", 10**6)) == "answer" * 10**6
        with pytest.raises(EOFError):
            within(20.0, partial(os._exit, 3))
    finally:
        done.set()
        if threads:
            beside.join()
