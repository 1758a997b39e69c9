"""What lives in a rank: calls are recorded as they were made, and whatever fails in here never fails the program."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankscope.evidence.model import Call
from rankscope.evidence.pages import ask_listener, read_page
from rankscope.probe import bootstrap
from rankscope.probe.calls import CallRecorder
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import Page

SITE = Path(bootstrap.__file__).parent / "site"


class Group:
    def __init__(self, group_name: str) -> None:
        self.group_name = group_name


class Tensor:
    dtype = "torch.float32"

    def numel(self) -> int:
        return 12


def all_reduce(tensor: Any, op: str = "sum", group: Group | None = None) -> str:
    return f"{op} of {tensor}"


def broadcast(tensor: Any, src: int = 0, group: Group | None = None) -> None:
    return None


def send(tensor: Any, dst: int | None = None, group: Group | None = None, tag: int = 0) -> None:
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
def test_call_left_by_an_interrupt_is_left(page: Page, recorder: CallRecorder, signal_like: type[BaseException]) -> None:
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


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("watched_")]:
        del sys.modules[name]


def test_import_calls_back_once_the_module_is_there(module_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module_folder / "watched_one.py").write_text("value = 1\n")
    told: list[str] = []
    seen: list[ModuleType] = []
    watch = ImportWatch(told.append)
    watch.when_imported("watched_one", seen.append)
    watch.when_imported("watched_never", seen.append)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    watch.install()
    module = __import__("watched_one")
    __import__("watched_one")
    assert seen == [module]
    assert seen[0].value == 1
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    with pytest.raises(ImportError):
        __import__("watched_never")
    assert told == []


def test_callback_that_fails_is_told_and_the_import_goes_on(
    module_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module_folder / "watched_two.py").write_text("value = 2\n")
    (module_folder / "watched_bad.py").write_text("raise ImportError('of the user')\n")
    told: list[str] = []
    watch = ImportWatch(told.append)
    watch.when_imported("watched_two", lambda module: module.no_such_thing)
    watch.when_imported("watched_bad", lambda _module: told.append("must not be called"))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    watch.install()
    assert __import__("watched_two").value == 2
    with pytest.raises(ImportError, match="of the user"):
        __import__("watched_bad")
    assert len(told) == 1
    assert "watched_two" in told[0]


def run_with_probe(tmp_path: Path, program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process as the launcher starts it: the probe's folder on the path, pages in `tmp_path/pages`."""
    (tmp_path / "pages").mkdir(exist_ok=True)
    script = tmp_path / "program.py"
    script.write_text(program)
    variables = {
        **os.environ,
        "PYTHONPATH": str(SITE),
        bootstrap.FOLDER_VARIABLE: str(tmp_path / "pages"),
        "RANK": "1",
        **env,
    }
    return subprocess.run(
        [sys.executable, str(script)], env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def only_page(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "pages").glob("*.page")
    return path


def test_process_of_a_job_has_a_page_from_its_first_line_on(tmp_path: Path) -> None:
    ended = run_with_probe(
        tmp_path, "import sys\nprint('torch' in sys.modules)\ndef leave():\n    sys.exit(9)\nleave()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (9, "False\n", "")
    content = read_page(only_page(tmp_path))
    assert content.rank == 1
    assert content.progress.stage == "exiting"
    assert content.progress.finalizing
    assert content.progress.exit_note == "sys.exit(9)"
    assert [(frame.line, frame.function) for frame in content.progress.exit_site] == [(4, "leave"), (5, "<module>")]
    assert content.progress.probe_errors == ()
    assert content.stacks_on_signal


def test_uncaught_exception_is_on_the_page(tmp_path: Path) -> None:
    ended = run_with_probe(tmp_path, "def load():\n    raise LookupError('no such sample')\nload()\n")
    assert ended.returncode == 1
    assert "exits.py" not in ended.stderr
    (error,) = read_page(only_page(tmp_path)).exceptions
    assert (error.type, error.message, error.source) == ("LookupError", "no such sample", "hook")
    assert [(frame.line, frame.function) for frame in error.frames] == [(2, "load"), (3, "<module>")]


def test_forked_child_of_a_rank_has_no_page_and_changes_none(tmp_path: Path) -> None:
    program = """
import os, sys
pid = os.fork()
if pid == 0:
    raise RuntimeError("in the child")
os.waitpid(pid, 0)
print("parent goes on")
"""
    ended = run_with_probe(tmp_path, program)
    assert (ended.returncode, ended.stdout) == (0, "parent goes on\n")
    assert read_page(only_page(tmp_path)).exceptions == ()


def test_probe_that_cannot_start_leaves_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages").chmod(0o500)
    blocked = tmp_path / "not-a-folder"
    blocked.write_text("")
    program = "import sys\nprint('went well', [name for name in sys.modules if 'rankscope' in name])\n"
    ended = run_with_probe(tmp_path, program, **{bootstrap.FOLDER_VARIABLE: str(blocked)})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("went well")
    full = run_with_probe(tmp_path, program, TORCHELASTIC_RESTART_COUNT="no/such/folder")
    assert (full.returncode, full.stderr) == (0, "")
    assert full.stdout.startswith("went well")


def test_probe_error_is_written_where_the_launcher_looks(tmp_path: Path) -> None:
    told = tmp_path / "errors"
    run_with_probe(tmp_path, "pass\n", TORCHELASTIC_RESTART_COUNT="no/such/folder", RANKSCOPE_PROBE_ERRORS=str(told))
    assert "the probe did not start: FileNotFoundError" in told.read_text()


@pytest.mark.slow
def test_rank_of_a_real_group_records_steps_batches_and_calls(tmp_path: Path) -> None:
    program = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.ones(6, 2), batch_size=2):
    model(batch).sum().backward()
    optimizer.step()
dist.all_reduce(torch.ones(5))
dist.barrier()
dist.destroy_process_group()
"""
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ended = run_with_probe(tmp_path, program, **env)
    assert (ended.returncode, ended.stderr) == (0, "")
    progress = read_page(only_page(tmp_path)).progress
    assert (progress.steps, progress.batches, progress.declared_world) == (3, 3, 1)
    assert progress.loader is not None
    assert (progress.loader.batches, progress.loader.exhausted) == (3, True)
    assert progress.probe_errors == ()
    assert [group.ranks for group in progress.groups] == [(0,)]
    lines = {call.op: call.site[0].line for call in progress.calls if call.depth == 0 and call.site}
    assert {"init_process_group": 4, "backward": 8, "all_reduce": 10, "barrier": 11}.items() <= lines.items()
    (reduced,) = [call for call in progress.calls if call.op == "all_reduce" and call.depth == 0]
    assert (reduced.numel, reduced.dtype, reduced.step, reduced.group) == (5, "float32", 3, "0")
    assert all(call.left_at is not None for call in progress.calls)


def test_listener_tells_stacks_and_the_exception_being_handled(tmp_path: Path) -> None:
    program = """
import sys, threading
from rankscope.probe import bootstrap, listener
listener.start(bootstrap._pages[0])
try:
    raise ValueError("the one behind the wait")
finally:
    print("ready", flush=True)
    sys.stdin.read()
"""
    (tmp_path / "pages").mkdir()
    script = tmp_path / "program.py"
    script.write_text(program)
    variables = {**os.environ, "PYTHONPATH": str(SITE), bootstrap.FOLDER_VARIABLE: str(tmp_path / "pages")}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (socket_path,) = (tmp_path / "pages").glob("*.sock")
        exceptions, sample = ask_listener(socket_path, at=time.time(), timeout_s=10.0)
        process.communicate()
    (error,) = exceptions
    assert (error.type, error.message, error.thread) == ("ValueError", "the one behind the wait", "MainThread")
    (main,) = [thread for thread in sample.threads if thread.main]
    assert (main.frames[-1].file, main.frames[-1].line) == (str(script), 9)


@pytest.mark.slow
def test_recorded_call_costs_little(recorder: CallRecorder) -> None:
    """A bound against accidents, not a measurement."""
    wrapped = recorder.wrap(all_reduce)
    tensor, count = Tensor(), 5000
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            wrapped(tensor)
        best = min(best, (time.perf_counter() - begin) / count)
    assert best < 15e-6
