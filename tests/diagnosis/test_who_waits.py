"""Who waits for whom, as the board says it."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.who_waits import who_waits
from rankscope.evidence.model import Call, Group, Progress

NOW = 1000.0
EMPTY = Progress(
    stage="",
    stage_since=0.0,
    steps=5,
    batches=5,
    changed_at=NOW,
    declared_world=3,
    calls_total=0,
    calls=(),
    groups=(),
    loader=None,
)


def call(op: str, *, seq: int = 0, step: int = 5, inside: bool = False, group: str = "0", peer: int = -1) -> Call:
    return Call(
        index=seq,
        op=op,
        group=group,
        seq=seq,
        thread=1,
        depth=0,
        entered_at=NOW - 2.0,
        left_at=None if inside else NOW - 1.9,
        failed=False,
        step=step,
        peer=peer,
        numel=-1,
        dtype="",
        site=(),
    )


def rank(*calls: Call, steps: int = 5, groups: tuple[Group, ...] = ()) -> Progress:
    return replace(EMPTY, calls=calls, steps=steps, groups=groups)


def test_those_in_a_collective_wait_for_who_has_not_come_to_it() -> None:
    waits = who_waits(
        {
            0: rank(call("all_reduce", seq=4), call("all_reduce", seq=5, inside=True)),
            1: rank(call("all_reduce", seq=5, inside=True)),
            2: rank(call("all_reduce", seq=4)),
        },
        NOW,
    )
    assert waits == {0: {2}, 1: {2}}


def test_the_backward_pass_is_known_by_its_step() -> None:
    in_it, not_yet = rank(call("backward", inside=True, group="")), rank(call("backward", step=4, group=""))
    assert who_waits({0: in_it, 1: in_it, 2: not_yet}, NOW) == {0: {2}, 1: {2}}
    assert who_waits({0: in_it, 1: rank(call("backward", group=""), steps=6)}, NOW) == {}


def test_a_moment_is_no_wait_and_who_all_came_wait_for_nobody() -> None:
    inside = rank(call("barrier", seq=1, inside=True))
    assert who_waits({0: inside, 1: rank()}, NOW - 1.9) == {}
    assert who_waits({0: inside, 1: inside}, NOW) == {}


def test_only_members_of_the_group_and_only_the_peer_of_a_message_are_waited_for() -> None:
    pair = (Group("tp", "", (0, 1)),)
    waits = who_waits(
        {0: rank(call("all_gather", seq=1, inside=True, group="tp"), groups=pair), 1: rank(), 2: rank()}, NOW
    )
    assert waits == {0: {1}}
    assert who_waits({0: rank(call("recv", inside=True, peer=2)), 1: rank(), 2: rank()}, NOW) == {0: {2}}
