"""NCCL's RAS: recorded answers of NCCL 2.28.9, answers as other releases print them, and servers that misbehave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankscope.errors import EvidenceError
from rankscope.evidence import ras
from rankscope.evidence.communicators import CommMember, RasLook
from rankscope.evidence.ras_text import parse_answer

RECORDED = Path(__file__).parent / "ras"


def recorded(name: str) -> RasLook:
    return parse_answer((RECORDED / f"{name}.txt").read_text(), at=1.0)


def launched(look: RasLook, comm: int, operation: str) -> dict[int, int]:
    return {
        member.rank: member.launched[operation]
        for member in look.communicators[comm].members
        if operation in member.launched
    }


def test_the_rank_that_lags_is_read_with_its_process() -> None:
    look = recorded("plateau_counter")
    assert (look.version, look.processes, look.counted) == ("2.28.9", 3, False)
    assert [comm.size for comm in look.communicators] == [3, 3]
    assert launched(look, 0, "AllReduce") == {0: 200, 1: 200, 2: 190}
    assert look.communicators[0].members[2].pid == 1341
    assert look.communicators[1].members == (), "nothing is told of a communicator whose ranks are alike"
    assert look.pids() == {1341}


def test_every_communicator_that_differs_is_read() -> None:
    look = recorded("bias_terms")
    assert launched(look, 0, "AllReduce") == {0: 363, 1: 364, 2: 363}
    assert launched(look, 1, "AllReduce") == {0: 121, 1: 122, 2: 121}


def test_a_job_without_differences_names_nobody() -> None:
    look = recorded("noise_field")
    assert look.pids() == frozenset()
    assert (look.processes, len(look.communicators)) == (3, 1)


OLD = """\
NCCL version 2.24.3 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE,MISMATCH
    1         2         1         4         4         8      INIT      OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 192.0.2.13 managing GPU 5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 77 on node 192.0.2.12 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

#0-0 (cf264af53edbe986) ERROR
  Asynchronous error on 1 rank
  Rank 4 reported Remote process error -- GPU 4 managed by process 14 on node 192.0.2.10

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  28 ranks have launched up to operation 6650
  3 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 10 on node 192.0.2.10
  Rank 2 -- GPU 0 (NVML 2) managed by process 12 on node 192.0.2.10
  Rank 3 -- [process information not found]
"""


def test_the_text_of_an_older_release_with_processes_that_do_not_answer() -> None:
    look = parse_answer(OLD, at=1.0)
    first = look.communicators[0]
    counts = launched(look, 0, "collective")
    assert (first.id, first.size, len(look.communicators)) == ("cf264af53edbe986", 32, 3)
    assert {rank for rank, count in counts.items() if count == 6649} == {0, 2, 3}
    assert (len(counts), counts[31]) == (31, 6650), "all but the one that did not answer"
    members = {member.rank: member for member in first.members}
    assert (members[2].pid, members[2].gpu, members[3].pid) == (12, 2, None)
    assert (members[21].state, members[4].error) == ("unresponsive", "Remote process error")
    assert [(gone.pid, gone.host, gone.dead) for gone in look.lost] == [
        (3487984, "192.0.2.13", False),
        (77, "192.0.2.12", True),
    ]


TWO_SIDES = """\
NCCL version 2.26.2 compiled with CUDA 12.8

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

Warnings
========

#0-0 (00000000000000aa) MISMATCH
  Communicator ranks have different status
  2 ranks have status RUNNING
  Rank 3 has status NOCOMM -- GPU 3 managed by process 44 on node 192.0.2.1
  Rank 2 has status FINALIZE -- GPU 2 managed by process 43 on node 192.0.2.1
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 8
  2 ranks have not launched any operations

  Communicator ranks have different Broadcast operation counts
  3 ranks have launched up to operation 5
  Rank 1 has not launched any operations -- GPU 1 managed by process 42 on node 192.0.2.1
"""


def test_two_sides_of_which_the_text_names_nobody_stay_unnamed() -> None:
    look = parse_answer(TWO_SIDES, at=1.0)
    assert launched(look, 0, "AllReduce") == {}
    assert launched(look, 0, "Broadcast")[1] == 0
    states = {member.rank: member.state for member in look.communicators[0].members}
    assert (states[2], states[3]) == ("finalize", "left")


def json_answer(counts: dict[int, int], pids: dict[int, int], missing: tuple[int, ...] = ()) -> str:
    """As NCCL writes it: src/ras/client_support.cc, jsonWriteRankData and jsonWriteMissingRank."""
    ranks = [
        {
            "rank": rank,
            "host": "192.0.2.2",
            "pid": pids[rank],
            "cuda_dev": 0,
            "nvml_dev": rank,
            "status": {
                "init_state": 0,
                "async_error": 0,
                "finalize_called": False,
                "destroy_flag": False,
                "abort_flag": False,
            },
            "collective_counts": {"Broadcast": 0, "AllGather": 0, "AllReduce": count},
        }
        for rank, count in counts.items()
    ]
    absent = [
        {
            "rank": rank,
            "host": "192.0.2.2",
            "pid": pids[rank],
            "cuda_dev": 0,
            "nvml_dev": rank,
            "status": {"unresponsive": True, "considered_dead": False},
        }
        for rank in missing
    ]
    comm = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0x1:0x2",
        "size": len(pids),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": ranks,
        "missing_ranks": absent,
    }
    return json.dumps(
        {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm], "ras": {}}, indent=2
    )


def test_json_tells_every_count() -> None:
    look = parse_answer(json_answer({0: 9, 1: 8}, {0: 11, 1: 12, 2: 13}, missing=(2,)), at=1.0)
    assert look.counted
    assert look.communicators[0].members == (
        CommMember(0, 11, "192.0.2.2", 0, "running", {"Broadcast": 0, "AllGather": 0, "AllReduce": 9}),
        CommMember(1, 12, "192.0.2.2", 1, "running", {"Broadcast": 0, "AllGather": 0, "AllReduce": 8}),
        CommMember(2, 13, "192.0.2.2", 2, "unresponsive"),
    )
    assert [gone.pid for gone in look.lost] == [13]


@pytest.mark.parametrize(
    "answer", ["", "HTTP/1.1 400 Bad Request", "{", "[]", '{"communicators": 5}', '{"communicators": [{}]}']
)
def test_what_is_no_answer_is_refused(answer: str) -> None:
    with pytest.raises(EvidenceError, match="cannot be read"):
        parse_answer(answer, at=1.0)


@contextmanager
def server(handle: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Listens as a RAS thread does, and handles each client in turn."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    handle(client)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[:2]
        done.set()


def commands(client: socket.socket) -> list[str]:
    """What the client asks, up to the question for the status."""
    received = b""
    while b"STATUS\n" not in received:
        part = client.recv(4096)
        if not part:
            break
        received += part
    return received.decode().splitlines()


def speak(client: socket.socket, answer: str, *, knows_json: bool = True) -> None:
    """The whole talk of a RAS thread."""
    for command in commands(client):
        if command.startswith("CLIENT PROTOCOL"):
            client.sendall(b"SERVER PROTOCOL 2\n")
        elif command.startswith("TIMEOUT") or (command.startswith("SET FORMAT") and knows_json):
            client.sendall(b"OK\n")
        elif command.startswith("SET FORMAT"):
            client.sendall(f"ERROR: Unknown command {command}\n".encode())
        else:
            client.sendall(answer.encode())


def test_asks_and_understands_json() -> None:
    answer = json_answer({0: 9, 1: 8}, {0: 11, 1: 12})
    with server(lambda client: speak(client, answer)) as address:
        look = ras.ask_job(address, {11: 11}, world_size=2)
    assert isinstance(look, RasLook)
    assert launched(look, 0, "AllReduce") == {0: 9, 1: 8}


def test_an_older_nccl_answers_in_text() -> None:
    answer = (RECORDED / "fixed_point.txt").read_text()
    with server(lambda client: speak(client, answer, knows_json=False)) as address:
        look = ras.ask_job(address, {1656: 1656}, world_size=3)
    assert isinstance(look, RasLook)
    assert launched(look, 0, "AllReduce") == {0: 121, 1: 121, 2: 120}


def test_processes_of_a_container_get_the_pids_that_they_have_here() -> None:
    answer = json_answer({0: 9, 1: 8}, {0: 11, 1: 12})
    with server(lambda client: speak(client, answer)) as address:
        look = ras.ask_job(address, {11: 4011, 12: 4012}, world_size=2)
    assert isinstance(look, RasLook)
    assert look.pids() == {4011, 4012}


def test_asks_again_until_the_right_job_answers() -> None:
    answers = [json_answer({0: 1}, {0: 99}), json_answer({0: 9, 1: 8}, {0: 11, 1: 12})]
    with server(lambda client: speak(client, answers.pop(0))) as address:
        look = ras.ask_job(address, {11: 11}, world_size=2)
    assert isinstance(look, RasLook)
    assert look.pids() == {11, 12}


def test_the_counts_of_another_job_are_not_taken() -> None:
    answer = json_answer({0: 1}, {0: 99})
    with server(lambda client: speak(client, answer)) as address:
        look = ras.ask_job(address, {11: 11}, world_size=1)
    assert look == f"another NCCL job answers at {address[0]}:{address[1]}"


def test_a_text_that_names_nobody_counts_only_for_a_job_of_that_size() -> None:
    answer = (RECORDED / "noise_field.txt").read_text()
    with server(lambda client: speak(client, answer)) as address:
        assert isinstance(ras.ask_job(address, {11: 11}, world_size=3), RasLook)
        assert isinstance(ras.ask_job(address, {11: 11}, world_size=8), str)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()[:2]
    assert "nothing answers" in str(ras.ask_job(address, {1: 1}, 1))


@pytest.mark.parametrize("behaviour", ["silent", "drips"])
def test_a_server_that_never_finishes_costs_the_limit_and_no_more(behaviour: str) -> None:
    release = threading.Event()

    def handle(client: socket.socket) -> None:
        while not release.wait(0.05):
            if behaviour == "drips":
                try:
                    client.sendall(b"NCCL")
                except OSError:
                    return

    begun = time.monotonic()
    with server(handle) as address:
        look = ras.ask_job(address, {1: 1}, 1, limit_s=0.5)
        release.set()
    assert "no answer in time" in str(look)
    assert time.monotonic() - begun < 3.0


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_MOST_BYTES", 100_000)

    def handle(client: socket.socket) -> None:
        try:
            for _ in range(100):
                client.sendall(b"x" * 65536)
        except OSError:
            return

    with server(handle) as address:
        assert "sent more than" in str(ras.ask_job(address, {1: 1}, 1))


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ("127.0.0.1", 28028)),
        ({"NCCL_RAS_ADDR": "localhost:12345"}, ("localhost", 12345)),
        ({"NCCL_RAS_ADDR": "[::1]:12345"}, ("::1", 12345)),
        ({"NCCL_RAS_ADDR": "nonsense"}, "NCCL_RAS_ADDR=nonsense is no HOST:PORT"),
        ({"NCCL_RAS_ENABLE": "0"}, "NCCL's RAS is switched off in this job (NCCL_RAS_ENABLE=0)"),
    ],
)
def test_the_address_comes_from_the_ranks_environment(
    environment: dict[str, str], address: tuple[str, int] | str
) -> None:
    assert ras.address_of(environment) == address
