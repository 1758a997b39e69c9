"""Every way in which the environment of a rank can be wrong is one clear line, before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rankscope.distributed.environment import read_place
from rankscope.distributed.failures import BadEnvironment, SetupFailed

GOOD = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

BROKEN: list[tuple[dict[str, str | None], str]] = [
    ({"RANK": None}, "RANK is not set, though WORLD_SIZE, MASTER_ADDR, MASTER_PORT are"),
    ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
    ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
    ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
    ({"RANK": "one"}, "RANK='one' is not a number"),
    ({"RANK": "1.0"}, "RANK='1.0' is not a number"),
    ({"RANK": "-1"}, "RANK=-1 is negative"),
    ({"RANK": "4"}, "RANK=4 and WORLD_SIZE=4: ranks count from 0, so RANK must be below 4"),
    ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a number"),
    ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE=0: a job has at least 1 rank"),
    ({"LOCAL_RANK": "gpu0"}, "LOCAL_RANK='gpu0' is not a number"),
    ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2"),
    ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR='no-such-host.invalid' does not resolve"),
    ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is not a number"),
    ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: a port lies between 1 and 65535"),
    ({"MASTER_PORT": "0"}, "MASTER_PORT=0: a port lies between"),
    ({"DDP_BACKEND": "mpi"}, "DDP_BACKEND='mpi' is no backend of this set-up: write nccl, gloo or auto"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_broken_environment_is_told_in_one_line(changes: dict[str, str | None], message: str) -> None:
    variables = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(BadEnvironment) as raised:
        read_place(variables)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.code == 80


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_port_that_another_process_holds_is_told(taken_port: int) -> None:
    variables = {**GOOD, "RANK": "0", "MASTER_PORT": str(taken_port)}
    with pytest.raises(BadEnvironment, match=f"MASTER_PORT={taken_port} cannot be listened on"):
        read_place(variables)
    served = read_place({**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert served.store_is_served


def test_good_environment_is_read() -> None:
    place = read_place({**GOOD, "DDP_BACKEND": "Gloo"})
    assert (place.rank, place.local_rank, place.world_size, place.port) == (1, 1, 4, 29500)
    assert (place.backend, place.launched) == ("gloo", True)


def test_without_a_launcher_it_is_a_single_process() -> None:
    place = read_place({})
    assert (place.rank, place.world_size, place.launched, place.backend) == (0, 1, False, "auto")


def test_failure_of_the_set_up_is_an_error_and_an_exit_code() -> None:
    codes = {kind.exit_code for kind in SetupFailed.__subclasses__()}
    assert len(codes) == len(SetupFailed.__subclasses__())
    assert not codes & {0, 1, 2, 75, 76}
    assert all(issubclass(kind, SystemExit) and issubclass(kind, Exception) for kind in SetupFailed.__subclasses__())
