"""What a rank writes on its page is what a reader finds there, also when it is full, shared or left by the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence, Frame, Group, RankEvidence
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.evidence.store import load_evidence, save_evidence
from rankscope.probe import page as layout
from rankscope.probe.page import LOADER_GAVE, LOADER_WAITING, Page

SITE = [("/home/me/train.py", 61, "train"), ("/home/me/main.py", 7, "<module>")]
FRAMES = tuple(Frame(function, file, line, user=True) for file, line, function in SITE)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), rank=3)


def enter(page: Page, op: str, **changes: int) -> int:
    fields = {"group": 0, "seq": 0, "site": 0, "thread": 1, "depth": 0, "peer": -1, "numel": -1, "dtype": 0, "note": 0}
    return page.enter(page.text(op), **{**fields, **changes})


def test_every_field_comes_back(page: Page) -> None:
    before = time.time()
    page.declare(5, 8)
    page.stage("init_process_group")
    page.group("0", "default_pg", [0, 1, 5])
    page.step()
    site = page.site(SITE)
    index = enter(
        page,
        "broadcast",
        group=page.text("0"),
        seq=418,
        site=site,
        thread=77,
        depth=2,
        peer=4,
        numel=1 << 40,
        dtype=page.text("float32"),
        note=page.text("key/7"),
    )
    page.leave(index, failed=True)
    open_call = enter(page, "barrier")
    page.loader(12, 1, 4, site, LOADER_WAITING)
    page.leaving(site, "sys.exit(3)")
    page.exception("ValueError", "no ümlaut\x1f in\nhere", "MainThread", SITE)
    page.error("a hook failed")
    page.raise_flag(layout.FINALIZING)
    after = time.time()

    content = read_page(Path(page.path))
    assert (content.pid, content.rank) == (os.getpid(), 5)
    assert before - 60 < content.started_at <= after
    progress = content.progress
    assert (progress.stage, progress.steps, progress.batches) == ("init_process_group", 1, 0)
    assert before <= progress.stage_since <= progress.changed_at <= after
    assert (progress.declared_world, progress.calls_total) == (8, 2)
    assert progress.groups == (Group("0", "default_pg", (0, 1, 5)),)
    call, waiting = progress.calls
    assert (call.index, call.op, call.group, call.seq) == (index, "broadcast", "0", 418)
    assert (call.thread, call.depth, call.peer, call.step) == (77, 2, 4, 1)
    assert (call.numel, call.dtype, call.note, call.site) == (1 << 40, "float32", "key/7", FRAMES)
    assert call.failed
    assert call.left_at is not None
    assert before <= call.entered_at <= call.left_at <= after
    assert (waiting.index, waiting.op, waiting.left_at, waiting.failed) == (open_call, "barrier", None, False)
    loader = progress.loader
    assert loader is not None
    assert (loader.batches, loader.number, loader.workers) == (12, 1, 4)
    assert (loader.in_next, loader.exhausted, loader.site) == (True, False, FRAMES)
    assert (progress.exit_site, progress.exit_note) == (FRAMES, "sys.exit(3)")
    (error,) = content.exceptions
    assert (error.type, error.message, error.frames) == ("ValueError", "no ümlaut  in\nhere", FRAMES)
    assert progress.probe_errors == ("a hook failed",)
    assert progress.finalizing


def test_fresh_page_says_nothing_yet(page: Page) -> None:
    content = read_page(Path(page.path))
    assert (content.rank, content.progress.calls, content.progress.loader) == (3, (), None)
    assert content.exceptions == ()
    assert read_heartbeat(Path(page.path)).calls == 0


def test_page_is_for_its_owner_only(page: Page) -> None:
    assert Path(page.path).stat().st_mode & 0o077 == 0


def test_ring_keeps_the_newest_calls(page: Page) -> None:
    total = layout.RING_SLOTS + 1000
    for number in range(total):
        page.leave(enter(page, "all_reduce", seq=number + 1), failed=False)
    progress = read_page(Path(page.path)).progress
    assert progress.calls_total == total
    assert len(progress.calls) == layout.RING_SLOTS
    assert [call.index for call in progress.calls] == list(range(1000, total))
    assert all(call.seq == call.index + 1 and call.left_at is not None for call in progress.calls)
    newest = read_page(Path(page.path), newest_calls=3).progress.calls
    assert [call.index for call in newest] == [total - 3, total - 2, total - 1]


def test_call_that_outlives_the_ring_does_not_close_another(page: Page) -> None:
    long = enter(page, "wait")
    for _ in range(layout.RING_SLOTS):
        enter(page, "send")
    page.leave(long, failed=True)
    calls = read_page(Path(page.path)).progress.calls
    assert [call for call in calls if call.left_at is not None or call.failed] == []


def test_full_heap_neither_raises_nor_hurts_what_is_there(page: Page) -> None:
    page.stage("training")
    known = page.text("all_reduce")
    for number in range(300):
        page.exception("ValueError", "x" * 8000, "MainThread", SITE)
        page.error("y" * 2000)
        page.text(f"key/{number} " + "z" * 1000)
        page.site([("/home/me/" + "d" * 500 + ".py", number, "f")])
    while page.site([]):
        pass
    page.group("late", "", [0])
    page.stage("a stage that finds no room")
    page.leave(enter(page, "all_reduce", site=page.site(SITE), note=page.text("also no room")), failed=False)
    page.step()
    content = read_page(Path(page.path))
    assert page.text("all_reduce") == known
    assert content.progress.stage == ""
    assert content.progress.steps == 1
    (call,) = content.progress.calls
    assert (call.op, call.site, call.note) == ("all_reduce", (), "")
    assert content.exceptions[0].message == "x" * 8000


def test_ever_new_texts_leave_room_for_how_it_ended(page: Page) -> None:
    """Keys of a store are new at every step of a long job; the exception at its end must still be kept."""
    for number in range(20_000):
        page.text(f"a/key/of/the/store/that/is/new/at/every/step/{number}")
    page.exception("ValueError", "at last", "MainThread", SITE)
    page.error("noted too")
    content = read_page(Path(page.path))
    assert [error.message for error in content.exceptions] == ["at last"]
    assert content.progress.probe_errors == ("noted too",)
    assert len(page.texts) < 20_000


def test_texts_of_any_kind_and_length_are_taken(page: Page) -> None:
    page.stage("\ud800 lone surrogate, a null \0 and " + "long " * 5000)
    page.error("\udcff")
    assert read_page(Path(page.path)).progress.stage.startswith("? lone surrogate, a null \0")


def test_heartbeat_tells_whether_a_call_is_open(page: Page) -> None:
    path = Path(page.path)
    first = read_heartbeat(path)
    assert first.waiting_since is None
    index = enter(page, "barrier")
    waiting = read_heartbeat(path)
    assert waiting.waiting_since is not None
    assert (waiting.calls, waiting.changed_at) == (1, waiting.waiting_since)
    page.leave(index, failed=False)
    page.step()
    page.loader(1, 0, 0, 0, LOADER_GAVE)
    last = read_heartbeat(path)
    assert (last.waiting_since, last.steps, last.batches) == (None, 1, 1)
    assert last.changed_at > waiting.changed_at > first.changed_at


def test_calls_of_many_threads_all_arrive(page: Page) -> None:
    def work(thread: int) -> None:
        for number in range(200):
            page.leave(enter(page, f"op{thread}", thread=thread, seq=number), failed=False)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = read_page(Path(page.path)).progress.calls
    assert len(calls) == 1600
    for number in range(8):
        assert [call.seq for call in calls if call.thread == number] == list(range(200))
        assert {call.op for call in calls if call.thread == number} == {f"op{number}"}


def test_forked_child_does_not_write_into_its_parents_page(page: Page) -> None:
    page.stage("training")
    enter(page, "all_reduce")
    pid = os.fork()
    if pid == 0:
        page.detach()
        page.stage("of the child")
        page.step()
        enter(page, "send")
        page.error("of the child")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    content = read_page(Path(page.path))
    assert (content.pid, content.progress.stage, content.progress.steps) == (os.getpid(), "training", 0)
    assert [call.op for call in content.progress.calls] == ["all_reduce"]
    assert content.progress.probe_errors == ()


def test_forked_child_can_have_a_page_of_its_own(page: Page, tmp_path: Path) -> None:
    page.stage("training")
    known = page.text("all_reduce")
    own = tmp_path / "0-2.page"
    pid = os.fork()
    if pid == 0:
        page.detach()
        page.attach(str(own))
        page.declare(1, 2)
        page.enter(known, 0, 0, 0, 1, 0, -1, -1, 0, 0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    content = read_page(own)
    assert (content.pid, content.rank) == (pid, 1)
    assert [call.op for call in content.progress.calls] == ["all_reduce"]
    assert read_page(Path(page.path)).progress.calls == ()


def test_page_of_a_killed_process_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "0-3.page"
    pid = os.fork()
    if pid == 0:
        page = Page(str(path), rank=0)
        page.stage("training")
        page.step()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    content = read_page(path)
    assert (content.pid, content.progress.stage, content.progress.steps) == (pid, "training", 1)


@pytest.mark.parametrize("content", [b"", b"RSCOPE01", b"x" * layout.PAGE_BYTES], ids=["empty", "short", "other"])
def test_what_is_no_page_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0-4.page"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"0-4\.page"):
        read_page(path)
    with pytest.raises(EvidenceError, match=r"nowhere\.page"):
        read_page(tmp_path / "nowhere.page")


def test_torn_heap_and_wild_numbers_do_not_stop_the_reader(page: Page) -> None:
    page.stage("training")
    enter(page, "all_reduce", site=999_999, dtype=888_888)
    data = bytearray(Path(page.path).read_bytes())
    layout.HEAP_ENTRY.pack_into(data, layout.HEAP_OFFSET, b"T", 1 << 31)
    layout.IDENTITY.pack_into(data, 0, layout.MAGIC, 1, 0, -7, 1 << 31, 0)
    Path(page.path).write_bytes(data)
    content = read_page(Path(page.path))
    assert content.progress.declared_world == 0
    assert (content.progress.calls[0].site, content.progress.calls[0].dtype) == ((), "")


def test_passes_over_loaders_are_kept_with_their_batches_and_lengths(page: Page) -> None:
    site = page.site(SITE)
    for number in range(layout.LOADER_SLOTS + 3):
        page.loader_begun(number, 40 + number, site)
        page.loader(30 + number, number, 2, site, LOADER_GAVE)
    progress = read_page(Path(page.path)).progress
    assert progress.loader is not None
    last = layout.LOADER_SLOTS + 2
    assert (progress.loader.number, progress.loader.batches, progress.loader.length) == (last, 30 + last, 40 + last)
    assert [(run.number, run.batches, run.length) for run in progress.earlier_loaders] == [
        (number, 30 + number, 40 + number) for number in range(3, last)
    ]
    assert {run.site for run in progress.earlier_loaders} == {FRAMES}


def test_checksum_that_is_not_finite_can_be_saved_and_read_again(page: Page, tmp_path: Path) -> None:
    page.checksum(3, float("nan"), "0", "weight")
    progress = read_page(Path(page.path)).progress
    assert [checksum.value for checksum in progress.checksums] == [None]
    seen = RankEvidence(0, 0, "node", 1, 0.0, progress=progress)
    save_evidence(Evidence(1, 1.0, 0.0, "end", 1, (seen,)), tmp_path)
    assert load_evidence(tmp_path).ranks == (seen,)
