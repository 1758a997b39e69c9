"""Who of a command's processes is a rank."""

from __future__ import annotations

from pathlib import Path

from rankscope.launch.watched.ranks import UNSURE_S, Process, is_complete, ranks_among

NOW = 1000.0


def process(
    pid: int,
    *,
    parent: int = 1,
    told: tuple[int, int, int] | None = None,
    by_torch: bool = False,
    joined: tuple[int, int] | None = None,
    index: int = -1,
    age: float = 5.0,
    alive: bool = True,
) -> Process:
    rank, world = joined or (-1, 0)
    return Process(pid, Path(f"0-{pid}.page"), NOW - age, parent, told, by_torch, index, rank, world, alive)


def found(*processes: Process) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in ranks_among(processes, NOW)}


def test_ranks_of_torchrun_are_known_from_their_start() -> None:
    launcher = process(10)
    first, second = (process(20 + rank, parent=10, told=(rank, 2, rank), by_torch=True) for rank in (0, 1))
    assert found(launcher, first, second) == {0: 20, 1: 21}
    assert is_complete(ranks_among([launcher, first, second], NOW))
    assert not is_complete(ranks_among([launcher, first], NOW))


def test_children_that_inherit_a_rank_are_none() -> None:
    rank = process(20, told=(0, 1, 0), by_torch=True)
    worker = process(30, parent=20, told=(0, 1, 0), by_torch=True, age=1.0)
    assert found(rank, worker) == {0: 20}


def test_children_of_a_rank_that_joined_are_none_though_they_are_told_a_number() -> None:
    """Lightning's first rank sets its number in its own environment, where its loaders' workers find it."""
    rank = process(20, joined=(0, 2))
    worker = process(30, parent=20, told=(0, 2, 0), age=1.0)
    second = process(21, parent=20, joined=(1, 2))
    assert found(rank, worker, second) == {0: 20, 1: 21}


def test_number_of_a_scheduler_counts_once_another_has_joined() -> None:
    first, second = process(20, told=(0, 2, 0)), process(21, told=(1, 2, 1))
    assert found(first, second) == {}
    first.rank, first.world = 0, 2
    assert found(first, second) == {0: 20, 1: 21}


def test_number_of_a_scheduler_counts_after_a_while() -> None:
    old = [process(20 + rank, told=(rank, 2, rank), age=UNSURE_S + 1) for rank in (0, 1)]
    assert found(*old) == {0: 20, 1: 21}


def test_launcher_that_a_scheduler_numbered_is_no_rank() -> None:
    """`srun torchrun`: the launcher has SLURM_PROCID, its ranks have RANK."""
    launcher = process(10, told=(0, 2, 0), age=UNSURE_S + 1)
    ranks = [process(20 + rank, parent=10, told=(rank, 2, rank), by_torch=True) for rank in (0, 1)]
    assert found(launcher, *ranks) == {0: 20, 1: 21}


def test_number_of_torchs_spawn_counts_once_a_sibling_has_joined() -> None:
    children = [process(20 + index, parent=10, index=index) for index in (0, 1)]
    assert found(*children) == {}
    children[1].rank, children[1].world = 1, 2
    assert found(*children) == {0: 20, 1: 21}
    stranger = process(40, parent=30, index=0)
    assert found(stranger, children[1]) == {1: 21}


def test_process_that_joined_beats_one_that_was_only_told() -> None:
    told = process(20, told=(0, 2, 0), by_torch=True, age=1.0)
    joined = process(19, joined=(0, 2), age=5.0)
    assert found(told, joined) == {0: 19}


def test_restarted_rank_that_has_not_joined_yet_takes_the_place_of_the_dead_one() -> None:
    dead = [process(20 + rank, told=(rank, 2, rank), by_torch=True, joined=(rank, 2), alive=False) for rank in (0, 1)]
    new = [process(30 + rank, told=(rank, 2, rank), by_torch=True, age=1.0) for rank in (0, 1)]
    assert found(*dead, *new) == {0: 30, 1: 31}
