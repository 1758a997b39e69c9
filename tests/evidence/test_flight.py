"""Flight records: real ones of torch, NCCL's forms, and broken ones."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pickle
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import EvidenceError
from rankscope.evidence.flight import parse_flight_json, parse_flight_pickle
from rankscope.evidence.model import Group
from rankscope.evidence.worker_socket import read_worker_socket

ENTRY: dict[str, Any] = {
    "record_id": 7,
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 3,
    "p2p_seq_id": 0,
    "op_id": 3,
    "is_p2p": False,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[2, 21]],
    "output_sizes": [[2, 21]],
    "input_dtypes": ["Float"],
    "output_dtypes": ["Float"],
    "state": "completed",
    "retired": True,
    "time_created_ns": 1794711596710819685,
    "time_discovered_completed_ns": 1794711597000000000,
    "timeout_ms": 600000,
    "thread_id": "140423920253824",
    "frames": [{"name": "step", "filename": "/me/train.py", "line": 61}],
}
DUMP: dict[str, Any] = {
    "version": "2.10",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "": {"name": "", "desc": "", "ranks": "[]"},
    },
    "pg_status": {
        "0": {
            "last_enqueued_collective": "4",
            "last_started_collective": "-1",
            "last_completed_collective": 3,
        },
        "5": {"last_enqueued_collective": 1, "last_completed_collective": -1},
    },
    "entries": [ENTRY],
}


def as_json(dump: object) -> bytes:
    return json.dumps(dump).encode()


@pytest.mark.parametrize(
    "read",
    [lambda dump: parse_flight_json(as_json(dump)), lambda dump: parse_flight_pickle(pickle.dumps(dump))],
)
def test_reads_nccls_entry_in_both_forms(read: Callable[[object], Any]) -> None:
    record = read(DUMP)
    (collective,) = record.collectives
    assert (collective.backend, collective.op, collective.group) == ("nccl", "all_reduce", "0")
    assert (collective.record_id, collective.seq, collective.retired) == (7, 3, True)
    assert collective.input_sizes == ((2, 21),)
    assert collective.input_dtypes == ("Float",)
    assert collective.created_at == pytest.approx(1794711596.71)
    assert collective.completed_at == pytest.approx(1794711597.0)
    assert collective.thread == 140423920253824
    assert (collective.frames[0].function, collective.frames[0].line, collective.frames[0].user) == (
        "step",
        61,
        True,
    )
    assert record.groups == (Group("0", "default_pg", (0, 1)),)
    assert record.last_enqueued == {"0": 4, "5": 1}
    assert record.last_completed == {"0": 3, "5": -1}


def test_status_of_a_group_is_found_through_the_entries_name() -> None:
    entry = ENTRY | {"pg_id": 1, "process_group": ["mesh_tp", "undefined"]}
    dump = DUMP | {"entries": [entry], "pg_status": {"1": {"last_enqueued_collective": "9"}}}
    assert parse_flight_json(as_json(dump)).last_enqueued == {"mesh_tp": 9}


def test_sends_keep_their_peers_and_entries_come_oldest_first() -> None:
    send = ENTRY | {"record_id": 2, "is_p2p": True, "p2p_seq_id": 1, "profiling_name": "nccl:send 0->1"}
    record = parse_flight_json(as_json(DUMP | {"entries": [ENTRY, send]}))
    assert [collective.record_id for collective in record.collectives] == [2, 7]
    assert (record.collectives[0].op, record.collectives[0].p2p, record.collectives[0].p2p_seq) == (
        "send 0->1",
        True,
        1,
    )


def test_no_time_of_completion_is_none_in_both_forms() -> None:
    for never in (0, None):
        dump = DUMP | {"entries": [ENTRY | {"time_discovered_completed_ns": never}]}
        assert parse_flight_json(as_json(dump)).collectives[0].completed_at is None


def test_when_a_device_came_to_a_collective_is_read_where_torch_times_them() -> None:
    entry = ENTRY | {"time_discovered_started_ns": 1794711596900000000}
    assert parse_flight_json(as_json(DUMP | {"entries": [entry]})).collectives[0].started_at == 1794711596.9
    assert parse_flight_json(as_json(DUMP)).collectives[0].started_at is None


def test_a_recorder_that_has_recorded_nothing_is_empty_and_not_broken() -> None:
    assert parse_flight_json(as_json(DUMP | {"entries": None})).collectives == ()
    of_torch_2_9 = b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}'
    assert parse_flight_json(of_torch_2_9).collectives == ()
    with pytest.raises(EvidenceError, match="entries"):
        parse_flight_json(as_json({"version": "2.10"}))


class Dangerous:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def test_a_pickle_that_would_run_something_is_refused_by_name() -> None:
    with pytest.raises(EvidenceError, match=r"posix\.system"):
        parse_flight_pickle(pickle.dumps(Dangerous()))


def test_wrong_shapes_say_what_is_wrong() -> None:
    with pytest.raises(EvidenceError, match="entries is None, not a list"):
        parse_flight_json(b"{}")
    with pytest.raises(EvidenceError, match="collective_seq_id is 'x', not a whole number"):
        parse_flight_json(as_json(DUMP | {"entries": [ENTRY | {"collective_seq_id": "x"}]}))
    with pytest.raises(EvidenceError, match="not valid JSON"):
        parse_flight_json(b"{")
    with pytest.raises(EvidenceError, match="not a valid pickle"):
        parse_flight_pickle(b"garbage")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def read_or_refuse(data: bytes, read: Callable[[bytes], Any]) -> None:
    with contextlib.suppress(EvidenceError):
        assert read(data) is not None


@given(VALUES, st.sampled_from(sorted(ENTRY)), st.sampled_from(sorted(DUMP)))
def test_any_value_in_any_place_is_read_or_refused(value: object, field: str, part: str) -> None:
    for dump in (value, DUMP | {part: value}, DUMP | {"entries": [ENTRY | {field: value}]}, {part: [value]}):
        read_or_refuse(as_json(dump), parse_flight_json)
        read_or_refuse(pickle.dumps(dump), parse_flight_pickle)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data, parse_flight_json)
    read_or_refuse(b"[" * 100_000 + data, parse_flight_json)
    read_or_refuse(data, parse_flight_pickle)


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[dict[str, bytes]], str]]:
    """A worker server that knows the given handlers."""
    servers: list[UnixServer] = []

    def begin(answers: dict[str, bytes]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            known: ClassVar[dict[str, bytes]] = answers

            def do_POST(self) -> None:
                body = self.known.get(self.path.removeprefix("/handler/"))
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write(body or b"")

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_arguments: object) -> None:
                pass

        path = str(tmp_path / "worker")
        server = UnixServer(path, Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return path

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[dict[str, bytes]], str]


def test_takes_the_recorder_that_has_entries(serve: Serve) -> None:
    path = serve({"fr_trace_json": b'{"entries":[]}', "dump_nccl_trace_json": as_json(DUMP)})
    assert parse_flight_json(read_worker_socket(path)).collectives[0].backend == "nccl"


def test_takes_the_general_recorder_where_there_is_no_other(serve: Serve) -> None:
    assert read_worker_socket(serve({"fr_trace_json": b'{"entries":[]}'})) == b'{"entries":[]}'


def test_a_server_without_a_recorder_is_an_evidence_error(serve: Serve) -> None:
    with pytest.raises(EvidenceError, match="knows none of"):
        read_worker_socket(serve({"ping": b""}))


def test_no_socket_and_a_silent_socket_are_evidence_errors(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="No such file"):
        read_worker_socket(str(tmp_path / "none"))
    with pytest.raises(EvidenceError, match="AF_UNIX path too long"):
        read_worker_socket(str(tmp_path / ("x" * 200)))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(EvidenceError, match=r"no answer within 0\.1 s"):
            read_worker_socket(str(tmp_path / "silent"), timeout_s=0.1)


RANK = """
import pickle, sys, time, torch, torch.distributed as dist
import torch.distributed.debug._handlers
from torch._C._distributed_c10d import _WorkerServer, _dump_fr_trace
folder = sys.argv[1]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def step():
    dist.all_reduce(torch.ones(2, 21))
for _ in range(5):
    step()
# Torch notes what completed after the caller was let go.
while not all(entry["retired"] for entry in pickle.loads(_dump_fr_trace(True, False, False))["entries"]):
    time.sleep(0.001)
with open(folder + "/pickle", "wb") as file:
    file.write(_dump_fr_trace(True, True, False))
server = _WorkerServer(folder + "/worker")
print("ready", flush=True)
sys.stdin.read()
server.shutdown()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_reads_what_torch_itself_records(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            online = parse_flight_json(read_worker_socket(str(tmp_path / "worker")))
        finally:
            rank.kill()
            rank.communicate()
    offline = parse_flight_pickle((tmp_path / "pickle").read_bytes())
    for record in (online, offline):
        assert [(c.seq, c.backend, c.op, c.group) for c in record.collectives] == [
            (number, "gloo", "all_reduce", "0") for number in range(1, 6)
        ]
        assert all(c.input_sizes == ((2, 21),) and c.retired for c in record.collectives)
        assert record.last_enqueued == {"0": 5}
        # Gloo's threads write this number unordered: the one that comes last may write an older one.
        assert 1 <= record.last_completed["0"] <= 5
    user = [frame for frame in offline.collectives[0].frames if frame.user]
    assert [(frame.function, frame.file) for frame in user] == [
        ("step", str(script)),
        ("<module>", str(script)),
    ]
