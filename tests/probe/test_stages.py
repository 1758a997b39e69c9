"""Stages are on the page as they happen, and wrapping a call for them changes nothing that a program can see."""

from __future__ import annotations

import gc
import inspect
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import rankscope
from rankscope import marks
from rankscope.evidence.model import Stage
from rankscope.evidence.pages import read_page
from rankscope.probe import bootstrap, constructions, stage_calls
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import STAGE_SLOTS, Page
from rankscope.probe.shortcuts import quick
from rankscope.probe.sites import Sites
from rankscope.probe.stage_wrappers import Call, wrap_attribute
from rankscope.probe.stages import StageBook


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), rank=0)


@pytest.fixture
def book(page: Page) -> StageBook:
    return StageBook(page, Sites(page))


@pytest.fixture(params=["shortcuts", "python"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rankscope.stage` and `rankscope.step` as they are with shortcuts, and as they are without."""
    if request.param == "shortcuts":
        if quick is None:
            pytest.skip("the shortcuts were not compiled: no compiler")
        return
    plain = type("stage", (marks.PlainStage,), {"__slots__": (), "__call__": marks.stage.__call__})
    monkeypatch.setattr(marks, "stage", plain)
    monkeypatch.setattr(rankscope, "stage", plain)
    monkeypatch.setattr(marks, "_declare", marks._declare_step)


@pytest.fixture
def listening(book: StageBook, stage: None) -> Iterator[StageBook]:  # noqa: ARG001  sets it up
    """As under the launcher: the process has a book."""
    bootstrap.BOOKS.append(book)
    yield book
    bootstrap.BOOKS.remove(book)


def stages(page: Page) -> tuple[Stage, ...]:
    return read_page(Path(page.path)).progress.stages


def test_stage_is_numbered_when_it_is_passed_and_knows_its_line(page: Page, book: StageBook) -> None:
    outer = book.begin("Trainer.__init__", "Trainer ready", "trainer", sys._getframe(), announce=True)
    inner = book.begin("init_process_group", "Process group ready", "process group", sys._getframe())
    assert [(stage.label, stage.number, stage.left_at) for stage in stages(page)] == [
        ("Trainer.__init__", 0, None),
        ("init_process_group", 0, None),
    ]
    book.end(inner)
    book.end(outer)
    first, second = stages(page)
    assert (first.number, second.number) == (2, 1)
    assert first.announced
    assert not second.announced
    assert first.site[0].file == __file__
    assert first.left_at is not None
    assert first.memory_before > 1 << 20
    assert first.memory_after > 1 << 20


def test_call_inside_another_of_its_kind_is_part_of_it(page: Page, book: StageBook) -> None:
    outer = book.begin("AutoTokenizer.from_pretrained", "Tokenizer loaded", "tokenizer", None)
    assert book.begin("Fast.from_pretrained", "Tokenizer loaded", "tokenizer", None) is None
    book.end(outer)
    assert len(stages(page)) == 1


def test_stage_that_failed_and_marks_of_memory_get_no_number(page: Page, book: StageBook) -> None:
    book.end(book.begin("wandb.init", "wandb run ready", "logger", None), failed=True)
    book.mark("MEM:START", "memory", None, always=True)
    book.mark("Args parsed", "arguments", None)
    assert [(stage.words, stage.number, stage.failed) for stage in stages(page)] == [
        ("wandb run ready", 0, True),
        ("MEM:START", 0, False),
        ("Args parsed", 1, False),
    ]


def test_stage_that_began_long_ago_is_kept_however_many_followed(page: Page, book: StageBook) -> None:
    outer = book.begin("evaluation", "evaluation", "", None)
    for _ in range(STAGE_SLOTS - 10):
        book.mark("batch", "", None)
    assert stages(page)[0].label == "evaluation"
    for _ in range(20):
        book.mark("batch", "", None)
    book.end(outer)
    assert all(stage.label == "batch" for stage in stages(page))
    assert read_page(Path(page.path)).progress.stages_passed == STAGE_SLOTS + 11


def test_stage_by_hand_is_a_function_a_context_manager_and_a_decorator(page: Page, listening: StageBook) -> None:
    rankscope.stage("Model created")
    with rankscope.stage("evaluation"):
        rankscope.stage("inside")
    with pytest.raises(LookupError), rankscope.stage("broken"):
        raise LookupError

    @rankscope.stage("export")
    def export(number: int) -> int:
        """Of the user."""
        return number + 1

    assert len(stages(page)) == 4
    assert (export(1), export.__name__, export.__doc__) == (2, "export", "Of the user.")
    assert [(stage.label, stage.number) for stage in stages(page)] == [
        ("Model created", 1),
        ("evaluation", 3),
        ("inside", 2),
        ("broken", 0),
        ("export", 4),
    ]
    assert listening.enabled


def _evaluate(name: str) -> None:
    with rankscope.stage(name):
        pass


def test_repeated_stage_is_told_from_others_of_its_name_by_line_caller_thread_and_words(
    page: Page, listening: StageBook
) -> None:
    listening.end_set_up()
    for _ in range(3):
        _evaluate("evaluation")
        _evaluate("evaluation")
    line, here = _evaluate.__code__.co_firstlineno + 1, sys._getframe().f_lineno - 2
    assert [[frame.line for frame in stage.site[:2]] for stage in stages(page)] == [[line, here], [line, here + 1]] * 3
    assert [stage.number for stage in stages(page)] == [1, 2, 3, 4, 5, 6]
    other = threading.Thread(target=_evaluate, args=("evaluation",))
    other.start()
    other.join()
    assert stages(page)[6].thread != stages(page)[5].thread
    assert stages(page)[6].site[0].line == line
    for note in ("a", "b", "a"):
        listening.mark("saved", "checkpoint", sys._getframe(), note=note)
    assert [stage.note for stage in stages(page)[7:]] == ["a", "b", "a"]
    assert all(stage.left_at is not None and stage.left_at >= stage.entered_at for stage in stages(page))


@pytest.mark.skipif(quick is None, reason="the shortcuts were not compiled: no compiler")
def test_line_that_passes_a_stage_again_comes_by_no_function_in_python(page: Page, listening: StageBook) -> None:
    listening.end_set_up()
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "rankscope" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    def train() -> None:
        for number in range(6):
            if number == 2:
                called.clear()
                sys.setprofile(note)
            with rankscope.stage("outer"), rankscope.stage("inner"):
                rankscope.step(number)
        sys.setprofile(None)

    train()
    if rankscope.stage is marks.stage and issubclass(marks.stage, quick.Stage):
        assert called == ["step"] * 4
    else:
        assert "begin" in called
    found = stages(page)
    assert [(stage.label, stage.number) for stage in found[-4:]] == [
        ("outer", 10),
        ("inner", 9),
        ("outer", 12),
        ("inner", 11),
    ]
    assert len({(stage.site, stage.thread) for stage in found[-4:]}) == 1
    assert read_page(Path(page.path)).progress.declared_step == 5


@pytest.mark.usefixtures("listening")
def test_stage_that_its_own_frame_holds_is_collected_and_marked(page: Page) -> None:
    def hold() -> None:
        held = rankscope.stage("held")
        del held

    def hold_on() -> list[object]:
        held: list[object] = [rankscope.stage("held on")]
        held.append(held)
        return held

    hold()
    hold_on()
    gc.collect()
    assert [stage.label for stage in stages(page)] == ["held", "held on"]


def test_stage_after_the_set_up_leaves_it_over_and_fails_without_a_number(page: Page, listening: StageBook) -> None:
    listening.end_set_up()
    rankscope.stage("evaluation")
    with pytest.raises(LookupError), rankscope.stage("evaluation"):
        raise LookupError
    open_one = listening.begin("export", "exported", "export", sys._getframe())
    progress = read_page(Path(page.path)).progress
    assert progress.set_up_over
    assert progress.stages_passed == 1
    assert [(stage.number, stage.failed, stage.left_at is None) for stage in progress.stages] == [
        (1, False, False),
        (0, True, False),
        (0, False, True),
    ]
    listening.end(open_one)
    assert stages(page)[2].number == 2


def test_own_step_number_ends_the_set_up(page: Page, listening: StageBook) -> None:
    rankscope.step(0)
    assert not read_page(Path(page.path)).progress.set_up_over
    rankscope.step(7)
    progress = read_page(Path(page.path)).progress
    assert progress.set_up_over
    assert progress.declared_step == 7
    assert not listening.setting_up


def test_stage_tells_what_it_takes() -> None:
    assert list(inspect.signature(rankscope.stage).parameters) == ["name"]
    with pytest.raises(TypeError):
        rankscope.stage()  # type: ignore[call-arg]


def test_by_hand_nothing_happens_without_a_launcher() -> None:
    assert bootstrap.BOOKS == []
    rankscope.stage("Model created")
    rankscope.step(1)
    rankscope.log_memory("START")
    with rankscope.stage("evaluation"):
        pass

    def function() -> None:
        return None

    assert rankscope.stage("export")(function) is function


class Logger:
    """Stands for a logger of a library."""

    def __init__(self, project: str, *, mode: str = "online") -> None:
        self.project = project
        self.mode = mode
        if project == "deprecated":
            warnings.warn("an old name", DeprecationWarning, stacklevel=2)
        if not project:
            raise ValueError("a project needs a name")

    @classmethod
    def restore(cls, project: str) -> Logger:
        return cls(project)

    @staticmethod
    def names(number: int = 2) -> list[str]:
        return ["a"] * number


@pytest.fixture
def wrapped(book: StageBook) -> Iterator[type[Logger]]:
    before = dict(vars(Logger))
    for name in ("__init__", "restore", "names"):
        wrap_attribute(book, Logger, name, Call("{cls}." + name, "{cls} ready", f"logger {name}"))
    yield Logger
    for name in ("__init__", "restore", "names"):
        setattr(Logger, name, before[name])


def failing() -> str:
    try:
        Logger("")
    except ValueError:
        return traceback.format_exc()
    return ""


def test_wrapping_changes_neither_signature_nor_pickle_nor_behaviour(page: Page, wrapped: type[Logger]) -> None:
    assert str(inspect.signature(Logger)) == "(project: 'str', *, mode: 'str' = 'online') -> 'None'"
    assert str(inspect.signature(Logger.names)) == "(number: 'int' = 2) -> 'list[str]'"
    assert inspect.getsource(Logger.__init__).startswith("    def __init__(self, project: str")
    assert Logger.restore("x").project == "x"
    assert isinstance(Logger.restore("x"), wrapped)
    assert Logger.names(3) == ["a", "a", "a"]
    assert pickle.loads(pickle.dumps(Logger("prices"))).project == "prices"
    assert pickle.loads(pickle.dumps(Logger.restore))("y").project == "y"
    assert {stage.words for stage in stages(page)} == {"Logger ready", "object ready", "int ready"} - {"object ready"}


def test_traceback_of_a_wrapped_call_is_that_of_the_call(wrapped: type[Logger]) -> None:
    del wrapped
    shown = failing()
    assert "rankscope" not in shown.replace(__file__, "")
    assert shown.count("  File ") == 2
    assert shown.rstrip().endswith("ValueError: a project needs a name")


def test_warning_of_a_wrapped_call_names_the_line_of_the_user(wrapped: type[Logger]) -> None:
    del wrapped
    with pytest.warns(DeprecationWarning, match="an old name") as told:
        Logger("deprecated")
    assert told[0].filename == __file__


class Base:
    def __init__(self, *_args: Any) -> None:
        self.ready = True


class Model(Base):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        if fail:
            raise RuntimeError("no weights")
        self.width = 3


class Holder:
    """Not a model, but makes one."""

    def __init__(self) -> None:
        self.model = Model()


@pytest.fixture
def watched(book: StageBook, monkeypatch: pytest.MonkeyPatch) -> StageBook:
    monkeypatch.setattr(Base, "__init__", Base.__init__)  # put back afterwards
    module = ModuleType("made_up")
    module.Base = Base  # type: ignore[attr-defined]
    constructions.Constructions(book)._base("Base", "module", "{} ready")(module)
    return book


def test_construction_of_a_users_class_is_a_stage_and_the_class_is_untouched(page: Page, watched: StageBook) -> None:
    before = Model.__init__
    Holder()
    Base()
    assert Model.__init__ is before
    assert [(stage.label, stage.words, stage.number) for stage in stages(page)] == [
        ("Model.__init__", "Model ready", 1),
        ("Base.__init__", "Base ready", 2),
    ]
    assert watched.enabled


def test_construction_that_fails_is_not_passed(page: Page, watched: StageBook) -> None:
    with pytest.raises(RuntimeError, match="no weights"):
        Model(fail=True)
    watched.mark("next", "", sys._getframe())
    failed, following = stages(page)
    assert (failed.label, failed.number) == ("Model.__init__", 0)
    assert following.number == 1


def test_every_known_call_is_wrapped_once_its_module_is_there(book: StageBook, tmp_path: Path) -> None:
    told: list[str] = []
    watch = ImportWatch(told.append)
    import argparse
    import os

    before = argparse.ArgumentParser.parse_known_args, os.makedirs, Path.mkdir
    try:
        stage_calls.watch_calls(book, watch)
        argparse.ArgumentParser().parse_args([])
        os.makedirs(tmp_path / "logs")
        (tmp_path / "checkpoints").mkdir()
        os.makedirs(tmp_path / ("a" * 60) / ("b" * 60) / "outputs")
    finally:
        argparse.ArgumentParser.parse_known_args, os.makedirs, Path.mkdir = before  # type: ignore[method-assign]
    assert told == []
    found = stages(book._page)
    assert [(stage.words, stage.note) for stage in found] == [
        ("Args parsed", ""),
        ("Directory ready", "logs"),
        ("Directory ready", "checkpoints"),
        ("Directory ready", "outputs"),
    ]
