"""Launchers that talk over the store: looks, rulings, goodbyes, and who is missed."""

from __future__ import annotations

import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from teams import Team, evidence, progress, rank

from conftest import wait_until
from rankscope.diagnosis.verdict import Verdict
from rankscope.door import Door, knock
from rankscope.launch.events import Ruled, TellNodes
from rankscope.launch.nodes.channel import Channel, ChannelLost, serves
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.nodes.words import Hello
from rankscope.report.conclude import conclude


def test_door_tells_alive_from_frozen_gone_and_unreachable() -> None:
    door = Door("127.0.0.1")
    assert knock("127.0.0.1", door.port) == "alive"
    door.close()
    assert knock("127.0.0.1", door.port) == "gone"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert knock("127.0.0.1", silent.getsockname()[1], 0.2) == "frozen"
        assert serves(silent.getsockname()[1])
    assert not serves(1)


def test_many_lost_nodes_are_asked_at_the_same_time() -> None:
    """Each of them answers nothing for as long as a knock takes; together they take no longer."""
    from rankscope.launch.nodes import roster as module

    team = Team(3)
    knocking = threading.Barrier(2, timeout=30.0)

    def slow(_address: str, _port: int) -> str:
        knocking.wait()  # passes only when both doors are knocked at in the same moment
        return "unreachable"

    try:
        assert wait_until(lambda: len(team.nodes[1].roster.hellos) == 3, 30.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "knock", slow)
            seen = team.nodes[1].gather_alone("still")
        assert [node.state for node in seen.nodes] == ["unreachable", "answered", "unreachable"]
    finally:
        team.close()


def test_nobody_waits_for_the_verdict_of_a_speaker_that_is_gone() -> None:
    """Found by chaos: its launcher was stopped at once, without a goodbye."""
    team = Team(2)  # the second speaks
    try:
        assert wait_until(lambda: len(team.nodes[0].roster.hellos) == 2, 30.0)
        assert team.nodes[0].gather("failure") is None  # the speaker is asked
        team.nodes[1]._stop.set()
        team.nodes[1]._door.close()
        team.nodes[0].roster.heard[1] = time.monotonic() - 60.0
        begun = time.monotonic()
        assert not team.nodes[0].await_ruling(threading.Event())
        assert time.monotonic() - begun < 8.0
    finally:
        team.close()


@pytest.mark.parametrize("done", [False, True])
def test_a_launcher_that_left_without_a_goodbye_is_missed_unless_its_ranks_had_ended_well(done: bool) -> None:
    """Found by chaos: the other launcher waited five minutes for it to end."""
    team = Team(2)
    left, speaker = team.nodes
    try:
        assert wait_until(lambda: speaker.beating() == {0}, 30.0)
        left.tell_done(done)
        number = speaker.roster.beats[0].number
        assert wait_until(lambda: speaker.roster.beats[0].number > number + 1, 30.0)
        assert not speaker.somebody_is_gone()
        left._stop.set()
        left._thread.join()
        left._door.close()
        assert not speaker.all_left()
        assert wait_until(lambda: bool(left_for(speaker, 60.0) and (speaker.somebody_is_gone() or done)), 30.0)
        assert speaker.somebody_is_gone() is not done
        seen = speaker.gather("still")
        assert seen is not None
        assert [node.state for node in seen.nodes] == ["ended" if done else "gone", "answered"]
        assert speaker.all_left()
    finally:
        team.close()


def left_for(exchange: Exchange, seconds: float) -> bool:
    """As if the first node had been silent for so long."""
    exchange.roster.heard[0] = time.monotonic() - seconds
    return True


def test_the_speaker_hears_which_signal_has_stopped_another_node() -> None:
    """Found by chaos: the ranks of the others waited on for those of a node that was interrupted."""
    team = Team(3)
    try:
        assert wait_until(lambda: team.nodes[1].beating() == {0, 2}, 30.0)
        before = time.time()
        team.nodes[0].tell_signal(signal.SIGINT)
        assert wait_until(lambda: bool(team.stops[1]), 30.0), "before its ranks have ended"
        team.nodes[0].close("ended", signal.SIGINT)
        team.nodes[2].tell_done(True)
        team.nodes[2].close("ended", signal.SIGTERM)
        assert wait_until(team.nodes[1].all_left, 30.0)
        (stopped,) = team.stops[1]
        assert (stopped.host, stopped.signal) == ("node-0", signal.SIGINT)
        assert before - 1.0 < stopped.at < time.time(), "by the speaker's clock"
        assert not team.nodes[1].somebody_is_gone()
    finally:
        team.close()


def test_a_node_is_known_to_the_others_before_its_first_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by chaos: its launcher was killed before the thread that speaks had come to its first word."""
    monkeypatch.setattr(Exchange, "start", lambda _self: None)
    team = Team(2)
    try:
        team.nodes[1]._turn()
        assert team.nodes[1].roster.hellos[0] == team.nodes[0].own
        team.nodes[0]._door.close()
        assert not team.nodes[1].somebody_is_gone()
        assert left_for(team.nodes[1], 60.0)
        assert team.nodes[1].somebody_is_gone()
    finally:
        team.close()


def test_a_node_with_the_store_that_was_never_met_is_known_by_its_store() -> None:
    """Found by chaos: it was killed the moment its ranks had started."""
    refused = Door("127.0.0.1")
    refused.close()

    def nobody(_limit: float) -> None:
        raise ConnectionRefusedError

    channel = Channel(nobody, "rankscope/", b"known to all of them", ("127.0.0.1", refused.port))
    own = Hello(1, "node-1", "127.0.0.1", 1, (2, 3), 1, holds_store=False)
    door = Door("127.0.0.1")
    here = evidence(*(rank(number, "node-1", progress=progress(1010.0)) for number in (2, 3)))
    exchange = Exchange(channel, own, 2, door, lambda _trigger: here, lambda _ruled: None, lambda _note: None)
    exchange.start()
    try:
        assert wait_until(lambda: channel.lost is not None, 10.0)
        assert not exchange.somebody_is_gone()
        exchange._answered_at -= 12.0
        assert exchange.somebody_is_gone()
        seen = exchange.gather("still")
        assert seen is not None
        lost = seen.nodes[-1]
        assert (lost.host, lost.ranks, lost.state, lost.pid) == ("127.0.0.1", (0, 1), "gone", None)
        verdict = conclude(seen)
    finally:
        exchange.close("ended")
    assert verdict.headline.startswith("the node 127.0.0.1 (ranks 0, 1) is gone: its launcher was killed")
    assert verdict.because[0] == "127.0.0.1 refuses connections to its launcher: the process has ended"


@pytest.mark.parametrize("why", ["asked", "all left"])
def test_nobody_waits_for_the_end_of_launchers_that_will_not_come(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from rankscope.launch import agent as module

    never = threading.Event()
    monkeypatch.setattr(LocalElasticAgent, "_exit_barrier", lambda _self: never.wait(60.0))
    agent = module.ScopeAgent.__new__(module.ScopeAgent)
    nodes = SimpleNamespace(all_left=lambda: why == "all left")
    vars(agent).update(
        _worker_group=SimpleNamespace(group_world_size=2),
        _job=SimpleNamespace(nodes=nodes),
        _asked="stop" if why == "asked" else None,
    )
    begun = time.monotonic()
    agent._exit_barrier()
    never.set()
    assert time.monotonic() - begun < 10.0


def test_a_store_that_never_answers_does_not_keep_a_launcher_from_ending() -> None:
    """Its node is cut off: the last word reaches nobody, and is not waited for."""
    never = threading.Event()

    def silent(_limit: float) -> None:
        never.wait()
        raise OSError

    channel = Channel(silent, "rankscope/", b"known to all of them")
    door = Door("127.0.0.1")
    own = Hello(0, "node-0", "127.0.0.1", door.port, (0,), 1, holds_store=False)
    exchange = Exchange(channel, own, 2, door, lambda _trigger: evidence(), lambda _ruled: None, lambda _note: None)
    exchange.start()
    begun = time.monotonic()
    exchange.close("ended")
    never.set()
    assert time.monotonic() - begun < 15  # of the thirty seconds that a first connection may take


def test_a_node_that_dies_between_its_parts_and_its_parcel_costs_nobody_elses_evidence() -> None:
    from rankscope.launch.nodes import looks as module

    team = Team(3)
    try:
        assert wait_until(lambda: len(team.nodes[1].beating()) == 2, 30.0)
        dying = vars(team.nodes[2])["_channel"]
        say = dying.say

        def dies(key: str, word: bytes) -> None:
            if key.startswith("evidence/"):
                raise ChannelLost("its machine is gone")
            say(key, word)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dying, "say", dies)
            patch.setattr(module, "ANSWER_S", 2.0)
            seen = team.nodes[1].gather("still")
        assert seen is not None
        assert [found.rank for found in seen.ranks] == [0, 1]
        assert [found.state for found in seen.nodes] == ["answered", "answered", "silent"]
        again = team.nodes[1].gather("still")
        assert again is not None
        assert [found.rank for found in again.ranks] == [0, 1, 2]
    finally:
        team.close()
    assert team.notes == []


def test_evidence_that_did_not_get_through_is_sent_once_more() -> None:
    """Of 512 nodes on a busy machine a few were not heard: one word to the store had taken too long."""
    team = Team(3)
    try:
        assert wait_until(lambda: len(team.nodes[1].beating()) == 2, 30.0)
        crowded = vars(team.nodes[2])["_channel"]
        refused: list[str] = []
        append = crowded.append

        def late(key: str, value: bytes) -> None:
            if key.startswith("answers/") and not refused:
                refused.append(key)
                raise ChannelLost("no answer within 4 s")
            append(key, value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crowded, "append", late)
            seen = team.nodes[1].gather("still")
        assert seen is not None
        assert refused
        assert [found.state for found in seen.nodes] == ["answered"] * 3
        assert [found.rank for found in seen.ranks] == [0, 1, 2]
    finally:
        team.close()
    assert team.notes == []


def test_one_look_brings_the_evidence_of_all_nodes_and_one_ruling_reaches_all() -> None:
    team = Team(3)
    try:
        assert wait_until(
            lambda: len(team.nodes[1].roster.hellos) == 3 and all(1 in node.roster.hellos for node in team.nodes), 30.0
        )
        assert [node.speaks for node in team.nodes] == [False, True, False]
        speaker = team.nodes[1]
        assert team.nodes[2].gather("failure") is None
        assert wait_until(lambda: speaker.look_wanted() == "failure", 30.0)
        seen = speaker.gather("failure")
        assert seen is not None
        assert [found.state for found in seen.nodes] == ["answered"] * 3
        assert [found.rank for found in seen.ranks] == [0, 1, 2]
        assert speaker.look_wanted() is None
        assert team.nodes[0].gather("non-finite") is None
        assert wait_until(lambda: speaker.look_wanted() == "non-finite", 30.0)
        assert speaker.gather("still") is not None
        assert speaker.look_wanted() == "non-finite"
        numbers = speaker.gather("non-finite")
        assert numbers is not None
        assert [found.rank for found in numbers.ranks] == [0, 1, 2]
        assert speaker.look_wanted() is None
        verdict = Verdict(1, "hang", "rank-left", "proven", (), (), "rank 2 left.", (), ())
        speaker.rule(TellNodes(verdict, stop=True, reason="signal", signal=15))
        assert wait_until(lambda: bool(team.rulings[0] and team.rulings[2]), 30.0)
        heard = Ruled(verdict, stop=True, reason="signal", signal=15, speaker="node-1")
        assert team.rulings == {number: [heard] * (number != 1) for number in range(3)}
    finally:
        team.close()
    assert team.notes == []
