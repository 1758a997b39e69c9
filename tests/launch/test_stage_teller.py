"""What is told of the ranks' stages, and when: all of it up to the first step, then what takes long."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from rankscope.launch.job import Job, RankProcess
from rankscope.launch.output import OutputPump
from rankscope.launch.run_state import Stages
from rankscope.launch.stage_teller import StageTeller
from rankscope.probe.page import STAGE_SLOTS, Page
from rankscope.probe.sites import Sites
from rankscope.probe.stages import StageBook


class Ranks:
    """A job of two ranks that exist as pages only."""

    def __init__(self, folder: Path, mode: Stages) -> None:
        pages = folder / "pages"
        pages.mkdir()
        self.lines: list[str] = []
        self.said: list[str] = []
        self.job = Job(folder, pages, ("train.py",), {}, OutputPump(io.BytesIO(), io.BytesIO()))
        self.books = []
        for rank in (0, 1):
            page = Page(str(pages / f"0-{1000 + rank}.page"), rank)
            self.books.append(StageBook(page, Sites(page)))
        self.job.started(
            0,
            2,
            [
                RankProcess(rank=rank, local_rank=rank, pid=1000 + rank, started_at=time.time(), poll=lambda: None)
                for rank in (0, 1)
            ],
        )
        self.shown: list[str] = []
        self.teller = StageTeller(self.job, mode, self.lines.extend, self.shown.extend, self.said.append)
        self.teller._status_due = False

    def told(self, after_s: float = 0.0) -> list[str]:
        """New lines, without the part that differs from run to run; the time is `after_s` from now."""
        del self.lines[:]
        self.teller._turn(time.time() + after_s)
        return [line.partition("] ")[2] if "[PID" not in line else line.partition("[PID:")[2] for line in self.lines]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, "auto")


def first_step(book: StageBook) -> None:
    book.end(book.begin("first optimizer step", "First optimizer step done", "first step", None))
    book.end_set_up()


def test_everything_is_told_up_to_the_first_step_and_only_long_things_after(ranks: Ranks) -> None:
    book = ranks.books[0]
    stage = book.begin("wandb.init", "wandb run ready", "logger", None, announce=True)
    assert ranks.told() == ["1000] About to call wandb.init..."]
    book.end(stage)
    assert [line.partition(" (")[0] for line in ranks.told()] == ["1000] CHECKPOINT 1: wandb run ready"]
    first_step(book)
    assert [line.partition(" (")[0] for line in ranks.told()] == ["1000] CHECKPOINT 2: First optimizer step done"]
    book.end(book.begin("saving a checkpoint", "Checkpoint saved", "save", None, announce=True))
    assert ranks.told() == []
    book.begin("saving a checkpoint", "Checkpoint saved", "save", None, announce=True)
    assert ranks.told() == []
    assert [line.partition(", for")[0] for line in ranks.told(after_s=6.0)] == ["1000] Still in saving a checkpoint"]
    assert ranks.told(after_s=7.0) == []


def test_ranks_that_train_with_nothing_to_tell_are_looked_at_more_rarely(ranks: Ranks) -> None:
    often = ranks.teller._period()
    first_step(ranks.books[0])
    ranks.told()
    ranks.told()
    assert ranks.teller._period() == often, "the other rank does not train yet"
    first_step(ranks.books[1])
    ranks.told()
    assert ranks.teller._period() == often, "that was told"
    ranks.books[0].mark("evaluation", "", None)
    assert ranks.told() == []
    assert ranks.teller._period() > often
    for _ in range(STAGE_SLOTS // 2):
        ranks.books[0].mark("batch", "", None)
    assert ranks.told() == []
    assert ranks.teller._period() == often, "so many might be overwritten unseen"


def test_all_of_it_is_told_and_shown_where_that_was_asked_for(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "on")
    first_step(ranks.books[0])
    ranks.told()
    del ranks.shown[:]
    ranks.books[0].end(ranks.books[0].begin("evaluation", "evaluation", "", None))
    assert [line.partition(" (")[0] for line in ranks.told()] == ["1000] CHECKPOINT 2: evaluation"]
    assert ranks.shown == ranks.lines


def test_of_what_is_kept_only_marks_of_memory_and_of_the_import_lock_are_shown_unasked(ranks: Ranks) -> None:
    ranks.books[0].mark("Model created", "", None)
    ranks.books[0].mark("MEM:POST-MODEL", "memory", None, always=True)
    ranks.books[0].mark("LOCK: waiting for exclusive access...", "lock", None, always=True)
    ranks.books[0].mark("Environment changed", "status", None, note="A=1", always=True)
    assert len(ranks.told()) == 4
    assert [line.partition("] ")[2] if "MEM" not in line else "MEM" for line in ranks.shown] == [
        "MEM",
        "LOCK: waiting for exclusive access...",
    ]


def test_what_is_quick_and_repeated_at_one_line_is_told_three_times(ranks: Ranks) -> None:
    for _ in range(8):
        ranks.books[0].mark("Module sharded", "wrapping", None)
    assert len(ranks.told()) == 3


def test_lines_of_several_ranks_come_in_the_order_of_time(ranks: Ranks) -> None:
    for number in range(3):
        for rank in (1, 0):
            ranks.books[rank].mark(f"stage {number}", "", None)
    assert [line.partition("]")[0] for line in ranks.told()] == ["1001", "1000"] * 3


def test_ranks_that_are_apart_for_long_are_told_once(ranks: Ranks) -> None:
    ranks.books[0].begin("init_process_group", "Process group ready", "process group", None)
    ranks.books[1].begin("wandb.init", "wandb run ready", "logger", None)
    ranks.told()
    ranks.told(after_s=5.0)
    assert ranks.said == []
    ranks.told(after_s=11.0)
    ranks.told(after_s=12.0)
    assert len(ranks.said) == 1
    assert ranks.said[0].startswith(
        'rank 0 is in "init_process_group" (stage 1); rank 1 has been in "wandb.init" for 1'
    )


def test_ranks_that_are_in_the_same_stage_are_not_apart(ranks: Ranks) -> None:
    for book in ranks.books:
        book.begin("init_process_group", "Process group ready", "process group", None)
    ranks.told(after_s=60.0)
    assert ranks.said == []
