"""Every recorded call is on the page as it was made, and a recording that fails never fails the call."""

# The functions that stand for torch's are there for their parameters' names.
# ruff: noqa: ARG001

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rankscope.evidence.model import Call
from rankscope.evidence.pages import read_page
from rankscope.probe.calls import CallRecorder, Depths
from rankscope.probe.page import Page
from rankscope.probe.shortcuts import quick


class Group:
    def __init__(self, group_name: str) -> None:
        self.group_name = group_name


class Tensor:
    dtype = "torch.float32"

    def numel(self) -> int:
        return 12


def all_reduce(tensor: Any, op: Any = "sum", group: Group | None = None) -> str:
    return f"{op} of {tensor}"


def broadcast(tensor: Any, src: int = 0, group: Group | None = None) -> None:
    return None


def send(
    tensor: Any, dst: int | None = None, group: Group | None = None, tag: int = 0, group_dst: int | None = None
) -> None:
    return None


def barrier(group: Group | None = None) -> None:
    raise ConnectionError("the peer has gone")


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), rank=0)


@pytest.fixture
def recorder(page: Page) -> CallRecorder:
    return CallRecorder(page)


def recorded(page: Page) -> list[Call]:
    return list(read_page(Path(page.path)).progress.calls)


def errors(page: Page) -> tuple[str, ...]:
    return read_page(Path(page.path)).progress.probe_errors


def line_below() -> int:
    """The caller's next line."""
    return sys._getframe(1).f_lineno + 1


def test_call_is_passed_on_and_its_line_is_the_users(page: Page, recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(all_reduce)
    tensor = Tensor()
    line = line_below()
    assert wrapped(tensor, op="max") == f"max of {tensor}"
    (call,) = recorded(page)
    assert (call.op, call.group, call.seq, call.depth) == ("all_reduce", "0", 1, 0)
    assert (call.numel, call.dtype, call.peer) == (12, "float32", -1)
    assert call.left_at is not None
    assert not call.failed
    assert (call.site[0].file, call.site[0].line) == (__file__, line)
    assert call.site[0].function == test_call_is_passed_on_and_its_line_is_the_users.__name__
    assert call.site[0].user
    assert call.thread == threading.get_native_id()


def test_how_a_call_reduces_is_noted(page: Page, recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(all_reduce)
    wrapped(Tensor())
    wrapped(Tensor(), SimpleNamespace(name="MAX"))
    wrapped(Tensor(), op=SimpleNamespace(name="AVG"))
    wrapped(Tensor(), op=object())
    assert [call.note for call in recorded(page)] == ["SUM", "MAX", "AVG", ""]


@pytest.mark.parametrize(
    ("tensor", "note"),
    [
        (torch.ones(3, 4), "SUM 3x4"),
        (torch.ones(1, 3, 1, 4), "SUM 3x4"),
        (torch.ones(3, 4, 3), "SUM 3x4x3"),
        (torch.ones(1, 12), "SUM"),
        (torch.ones(4, 4), "SUM"),
        (torch.ones(3, 4).t(), "SUM"),
        (torch.ones(12), "SUM"),
        (torch.ones(0, 4), "SUM 0x4"),
    ],
)
def test_which_way_a_matrix_lies_is_noted(page: Page, recorder: CallRecorder, tensor: Any, note: str) -> None:
    """Where that matters: elements are reduced by their place in memory."""
    wrapped = recorder.wrap(all_reduce)
    wrapped(tensor, None)
    wrapped(tensor, None)
    recorder.wrap(broadcast)(tensor)
    assert [call.note for call in recorded(page)] == [note, note, ""]


LIBRARY = """
class LightningModule:
    def log(self, value):
        return self._sync(value)

    def _sync(self, value):
        return reduce(value)

    @property
    def mean(self):
        return reduce(3)

def decorated(function):
    def call(*args):
        return function(*args)
    return call

@decorated
def save(value):
    return LightningModule().log(value)
"""


def library(recorder: CallRecorder) -> Any:
    """A class and a function of an installed package, which call the recorded function."""
    like = compile("0", "/venv/site-packages/torch/c10d_logger.py", "eval")
    scope: dict[str, Any] = {"reduce": recorder.wrap(all_reduce, like=like)}
    exec(compile(LIBRARY, "/venv/site-packages/lightning/module.py", "exec"), scope)
    return scope["LightningModule"], scope["save"]


def test_function_of_a_library_between_the_users_line_and_the_call_is_named(page: Page, recorder: CallRecorder) -> None:
    module, save = library(recorder)
    for _ in range(2):
        module().log(1)
    assert module().mean
    save(2)
    calls = recorded(page)
    qualified = hasattr(save.__code__, "co_qualname")  # Python 3.11 has it
    names = ["LightningModule.log", "LightningModule.log", "LightningModule.mean", "save"]
    if not qualified:
        names = ["log", "log", "mean", "call"]
    assert [call.through for call in calls] == names
    assert all(call.site[0].file == __file__ for call in calls)


def test_call_straight_from_the_users_line_goes_through_nothing(page: Page, recorder: CallRecorder) -> None:
    recorder.wrap(all_reduce, like=compile("0", "/venv/site-packages/torch/c10d_logger.py", "eval"))(Tensor())
    recorder.wrap_plain(lambda: 1, "backward")()
    assert [(call.through, call.site[0].file) for call in recorded(page)] == [("", __file__)] * 2


def test_site_of_an_older_page_goes_through_nothing(page: Page) -> None:
    """It holds the frames alone; one without frames holds nothing."""
    old = page.site([("/home/me/train.py", 3, "main"), ("/home/me/train.py", 9, "<module>")])
    for site in (old, page.site([]), 0):
        page.enter(page.text("barrier"), 0, 1, site, 1, 0, -1, -1, 0, 0)
    calls = recorded(page)
    assert [call.through for call in calls] == ["", "", ""]
    assert [len(call.site) for call in calls] == [2, 0, 0]


def test_frames_of_a_site_are_the_users_wherever_the_program_lies(page: Page) -> None:
    page.program(("/venv/lib/python3.11/site-packages/trainer/",))
    site = page.site([("/venv/lib/python3.11/site-packages/trainer/loop.py", 3, "main")], "Trainer.fit")
    page.enter(page.text("barrier"), 0, 1, site, 1, 0, -1, -1, 0, 0)
    progress = read_page(Path(page.path)).progress
    assert progress.program == ("/venv/lib/python3.11/site-packages/trainer/",)
    assert (progress.calls[0].site[0].user, progress.calls[0].through) == (True, "Trainer.fit")


def test_wrapped_function_looks_like_itself(recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(broadcast)
    assert (wrapped.__name__, wrapped.__module__, wrapped.__doc__) == ("broadcast", __name__, broadcast.__doc__)
    assert functools.wraps(broadcast)(lambda: None).__wrapped__ is wrapped.__wrapped__  # type: ignore[attr-defined]


def test_groups_are_counted_apart_and_peers_are_noted(page: Page, recorder: CallRecorder) -> None:
    reduce, cast, give = recorder.wrap(all_reduce), recorder.wrap(broadcast), recorder.wrap(send)
    pair = Group("7")
    reduce(Tensor())
    reduce([Tensor()], group=pair)
    cast(Tensor(), 3, pair)
    give(Tensor(), dst=2)
    give(tensor=Tensor(), dst=4, group=pair)
    reduce(Tensor())
    seen = [(call.op, call.group, call.seq, call.peer, call.numel) for call in recorded(page)]
    assert seen == [
        ("all_reduce", "0", 1, -1, 12),
        ("all_reduce", "7", 1, -1, 12),
        ("broadcast", "7", 2, 3, 12),
        ("send", "0", 0, 2, 12),
        ("send", "7", 0, 4, 12),
        ("all_reduce", "0", 2, -1, 12),
    ]


def test_calls_inside_calls_are_deeper_and_not_counted(page: Page, recorder: CallRecorder) -> None:
    inner = recorder.wrap(all_reduce)

    def all_gather_object(value: Any, group: Group | None = None) -> None:
        inner(Tensor())
        inner(Tensor())

    recorder.wrap(all_gather_object)("x")
    inner(Tensor())
    assert [(call.op, call.depth, call.seq) for call in recorded(page)] == [
        ("all_gather_object", 0, 1),
        ("all_reduce", 1, 0),
        ("all_reduce", 1, 0),
        ("all_reduce", 0, 2),
    ]
    assert all(call.left_at is not None for call in recorded(page))


def test_depth_is_counted_for_each_thread(page: Page, recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(all_reduce)

    def outer(group: Group | None = None) -> None:
        thread = threading.Thread(target=wrapped, args=(Tensor(),))
        thread.start()
        thread.join()

    recorder.wrap(outer)()
    first, second = recorded(page)
    assert (first.depth, second.depth) == (0, 0)
    assert first.thread != second.thread


def test_failing_call_is_marked_and_its_error_passes_through(page: Page, recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(barrier)
    with pytest.raises(ConnectionError, match="the peer has gone"):
        wrapped()
    recorder.wrap(all_reduce)(Tensor())
    failed, good = recorded(page)
    assert (failed.op, failed.failed, failed.left_at is not None) == ("barrier", True, True)
    assert (good.depth, good.failed) == (0, False)


@pytest.mark.parametrize("signal_like", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_call_left_by_an_interrupt_is_left(
    page: Page, recorder: CallRecorder, signal_like: type[BaseException]
) -> None:
    def all_to_all(tensor: Any, group: Group | None = None) -> None:
        raise signal_like

    with pytest.raises(signal_like):
        recorder.wrap(all_to_all)(Tensor())
    (call,) = recorded(page)
    assert call.failed
    assert call.left_at is not None


def test_open_call_is_on_the_page_while_it_lasts(page: Page, recorder: CallRecorder) -> None:
    def barrier(group: Group | None = None) -> list[Call]:
        return recorded(page)

    (call,) = recorder.wrap(barrier)()
    assert (call.op, call.left_at) == ("barrier", None)


def test_methods_and_plain_functions_carry_a_note(page: Page, recorder: CallRecorder) -> None:
    class Store:
        def get(self, key: str) -> bytes:
            return key.encode()

    recorder.wrap_method(Store, "get", lambda _store, key="", *_rest: str(key))
    assert Store().get("worker/3") == b"worker/3"
    plain: Callable[[], int] = recorder.wrap_plain(lambda: 1 // 0, "backward")
    with pytest.raises(ZeroDivisionError):
        plain()
    stored, backward = recorded(page)
    assert (stored.op, stored.note, stored.group, stored.failed) == ("Store.get", "worker/3", "", False)
    assert (backward.op, backward.failed) == ("backward", True)


def test_wrapper_for_torchs_own_wrapper_keeps_its_place_in_tracebacks(recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(barrier, like=line_below.__code__)
    with pytest.raises(ConnectionError) as caught:
        wrapped()
    own = caught.traceback[1]
    assert (str(own.path), own.lineno + 1) == (__file__, line_below.__code__.co_firstlineno + 3)


class Unreadable:
    @property
    def dtype(self) -> str:
        raise RuntimeError("this tensor does not like to be looked at")


def test_recording_that_fails_never_fails_the_call(page: Page, recorder: CallRecorder) -> None:
    wrapped = recorder.wrap(all_reduce)
    assert wrapped(Unreadable()).startswith("sum of")
    assert wrapped(Tensor()).startswith("sum of")
    assert recorded(page) == []
    (told,) = errors(page)
    assert "all_reduce" in told
    assert "does not like" in told


def test_page_that_cannot_be_written_never_fails_the_call(
    page: Page, recorder: CallRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = recorder.wrap(all_reduce)
    wrapped(Tensor())

    def broken(*_arguments: Any) -> int:
        raise ValueError("mmap closed or invalid")

    monkeypatch.setattr(page, "leave", broken)
    assert wrapped(Tensor()).startswith("sum of")
    monkeypatch.setattr(page, "enter", broken)
    assert wrapped(Tensor()).startswith("sum of")
    assert not recorder.enabled
    assert any("mmap closed" in error for error in errors(page))


def test_all_who_listen_to_a_call_are_told_and_each_may_leave(page: Page) -> None:
    calls, told = CallRecorder(page), []

    def first(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        told.append("first")

    def then(failed: bool) -> None:
        told.append(f"first, failed: {failed}")

    calls.before("backward", first)
    calls.after("backward", then)
    calls.before("backward", lambda _args, _kwargs: told.append("second"))
    calls.after("backward", lambda failed: told.append(f"second, failed: {failed}"))
    call = calls.wrap_plain(lambda: None, "backward")
    call()
    calls.forget("backward", first, then)
    call()
    assert told == [
        "first",
        "second",
        "first, failed: False",
        "second, failed: False",
        "second",
        "second, failed: False",
    ]


def test_member_named_by_its_number_in_the_group_is_recorded_with_its_rank(
    recorder: CallRecorder, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_global_rank(group: Group, within: int) -> int:
        if group.group_name == "gone":
            raise ValueError("not registered")
        return {0: 4, 1: 6}[within]

    monkeypatch.setattr("torch.distributed.distributed_c10d.get_global_rank", get_global_rank)
    give = recorder.wrap(send)
    give(Tensor(), group_dst=1)
    give(Tensor(), group=Group("7"), group_dst=1)
    give(Tensor(), None, Group("7"), 0, 0)
    give(Tensor(), None, Group("gone"), 0, 0)
    assert [call.peer for call in recorded(page)] == [1, 6, 4, -1]


@pytest.mark.parametrize("kind", [Depths, *([] if quick is None else [quick.Depths])])
def test_depth_is_counted_for_each_thread_however_many_come_and_go(kind: type[Depths]) -> None:
    depths, found = kind(), []

    def nest() -> None:
        found.append((depths.deeper(), depths.deeper(), depths.shallower(), depths.shallower(), depths.shallower()))

    assert depths.deeper() == 0
    for _ in range(100):
        thread = threading.Thread(target=nest)
        thread.start()
        thread.join()
    assert set(found) == {(0, 1, 1, 0, 0)}
    assert (depths.deeper(), depths.shallower(), depths.shallower()) == (1, 1, 0)


def test_depth_of_a_child_that_was_forked_within_a_call_begins_anew() -> None:
    depths = CallRecorder(cast(Any, SimpleNamespace())).depths
    depths.deeper()
    pid = os.fork()
    if pid == 0:
        left = depths.shallower()
        os._exit(0 if (left, depths.deeper(), depths.shallower()) == (0, 0, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert depths.shallower() == 0
