"""Before, during or after init_process_group: who has other variables than the rest is the culprit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from conftest import COMMAND, Rankscope
from namespaces import Host, hosts, why_not
from ports import free_port
from rankscope.errors import UsageError
from rankscope.launch.nodes import meeting
from rankscope.launch.nodes.meeting import check_meeting_place, leads_to_itself
from rankscope.launch.nodes.seal import Seal, key_of_attempt

ROW = "3.7"
COMMAND_LINE = "rankscope run train.py"
WRONG_PORT = {
    "setup_distributed": """
import os
import rankscope
if os.environ["RANK"] == "1":
    os.environ["MASTER_PORT"] = "29998"
rankscope.setup_distributed(timeout_s=60)
""",
    "init_process_group": """
import os
import torch.distributed as dist
if os.environ["RANK"] == "1":
    os.environ["MASTER_PORT"] = "29998"
dist.init_process_group("gloo")
""",
}
OWN_JOBS = """
import os, sys
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # each world serves a store of its own
os.environ.update(MASTER_PORT=sys.argv[1 + rank // 2], RANK=str(rank % 2), WORLD_SIZE="2")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
STANDS = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", WRONG_PORT)
@pytest.mark.parametrize("nproc", [2, 3])
def test_the_rank_with_another_port_is_the_culprit(rankscope: Rankscope, way: str, nproc: int) -> None:
    ended = rankscope.run(rankscope.script(WRONG_PORT[way]), nproc=nproc, timeout_s=120)
    verdict = ended.verdict
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1], verdict["headline"]
    assert (verdict["cause"], verdict["certainty"]) == ("address-unreachable", "proven")
    assert "MASTER_PORT=29998" in verdict["headline"]
    assert verdict["culprits"][0]["where"]["line"] == 5


@pytest.mark.slow
def test_ranks_that_make_worlds_of_their_own_are_left_alone(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(OWN_JOBS), free_port(), free_port(), nproc=4, timeout_s=120)
    assert ended.code == 0, ended.lines()


class Store:
    """As elastic's, in one process."""

    def __init__(self, **words: bytes) -> None:
        self.words = words

    def set(self, key: str, value: bytes) -> None:
        self.words[key] = value

    def wait(self, keys: list[str], _limit: timedelta) -> None:
        if any(key not in self.words for key in keys):
            raise RuntimeError("timeout")

    def get(self, key: str) -> bytes:
        return self.words[key]


def word(host: object, machine: object, itself: object, key: bytes | None = None) -> bytes:
    """Of node 0."""
    said = json.dumps({"host": host, "machine": machine, "itself": itself}).encode()
    return Seal(key_of_attempt(key, "", "k", 2)).close("k/0", said)


def test_a_loopback_name_is_refused_where_rank_0_is_on_another_machine() -> None:
    assert leads_to_itself("localhost") in ("127.0.0.1", "::1")
    assert leads_to_itself("192.0.2.7") == ""
    assert leads_to_itself("no.such.name.invalid") == ""
    store = Store(**{"k/0": word("node-0", "another machine", "127.0.0.1")})
    with pytest.raises(UsageError, match=r"MASTER_ADDR=localhost leads to .* rank 0 runs on node-0"):
        check_meeting_place(store, "k", 1, 2, "localhost")


def test_two_nodes_on_one_machine_may_meet_on_loopback() -> None:
    store = Store(**{"k/0": word("node-0", meeting._machine(), "127.0.0.1")})
    check_meeting_place(store, "k", 1, 2, "localhost")
    check_meeting_place(Store(), "k", 1, 2, "localhost")  # a node that says nothing proves nothing
    check_meeting_place(Store(**{"k/0": word("node-0", "another", "")}), "k", 1, 2, "192.0.2.7")


EVIL = "evil\x1b]0;title\x07\x1b[2J"
KEY = b"given to both of them"


@pytest.mark.parametrize(
    "said",
    [
        word(EVIL, "another", "127.0.0.1"),
        word(["a list"], "another", "127.0.0.1"),
        word("node-0", 7, "127.0.0.1"),
        word("node-0", "another", "127.0.0.1%\x1b[2J"),
        word("node-0", "another", "::1%\x1b[2J"),
        word("node-0", "another", "10.0.0.1"),
        b"",
        b"\xff\xfe",
        b"\0" + b"[" * 100_000,
        b"\0null",
    ],
)
def test_what_is_no_word_of_a_node_ends_no_launcher(said: bytes) -> None:
    check_meeting_place(Store(**{"k/0": said}), "k", 1, 2, "localhost")


def test_with_a_key_given_to_all_nodes_only_their_own_words_end_a_launcher() -> None:
    stranger = Store(**{"k/0": word("node-0", "another", "127.0.0.1", b"a key of their own")})
    check_meeting_place(stranger, "k", 1, 2, "localhost", KEY, only_sealed=True)
    node = Store(**{"k/0": word("node-0", "another", "127.0.0.1", KEY)})
    with pytest.raises(UsageError, match="rank 0 runs on node-0"):
        check_meeting_place(node, "k", 1, 2, "localhost", KEY, only_sealed=True)
    check_meeting_place(node, "k", 1, 2, "localhost", KEY, only_sealed=True, run_id="another job")
    # One that was made in the run's folder may be another on each node: their words count as without any.
    with pytest.raises(UsageError, match="rank 0 runs on node-0"):
        check_meeting_place(stranger, "k", 1, 2, "localhost", KEY)


class Overwritten(Store):
    """Somebody else writes over what node 0 says of itself."""

    def set(self, key: str, value: bytes) -> None:
        self.words[key] = word("node-0", "another", "127.0.0.1") if key == "k/0" else value


def test_what_others_make_of_a_nodes_own_word_does_not_end_it() -> None:
    store = Overwritten(**{"k/1": word("node-1", meeting._machine(), "127.0.0.1")})
    check_meeting_place(store, "k", 0, 2, "localhost")


@pytest.fixture
def machines() -> Iterator[list[Host]]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with hosts(2) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_machines_that_would_meet_on_loopback_are_told_before_a_rank_starts(
    rankscope: Rankscope, machines: list[Host]
) -> None:
    script = rankscope.script(STANDS)
    common = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{machines[0].address}:29544")
    # Machines whose own name is localhost tell the ranks to meet there.
    named = ("--rdzv-id", "x", "--local-addr", "localhost", "--nproc-per-node", 1)
    started = [
        rankscope.command(
            *host.command(*COMMAND, "run", *common, "--rdzv-conf", f"is_host={int(host is machines[0])}", *named),
            *("--run-dir", rankscope.folder / host.name, script),
        )
        for host in machines
    ]
    ended = [each.wait(150, gone_within_s=20) for each in started]
    assert [each.code for each in ended] == [2, 2], [each.lines()[-5:] for each in ended]
    for each in ended:
        assert "MASTER_ADDR=localhost leads to" in each.err.decode()
        assert "no rank was started" in each.err.decode()
