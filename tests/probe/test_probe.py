"""What lives in every process of a job: it starts before the program, sees it end, and never fails it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rankscope.evidence.pages import ask_listener, read_page
from rankscope.probe import bootstrap
from rankscope.probe.imports import ImportWatch

SITE = Path(bootstrap.__file__).parent / "site"


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


@pytest.mark.parametrize("word", ["exit", "quit"])
def test_line_that_calls_the_interactive_exit_is_on_the_page(tmp_path: Path, word: str) -> None:
    ended = run_with_probe(tmp_path, f"def leave():\n    {word}(9)\nleave()\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (9, "", "")
    progress = read_page(only_page(tmp_path)).progress
    assert (progress.exit_note, progress.probe_errors) == (f"{word}(9)", ())
    assert [(frame.line, frame.function) for frame in progress.exit_site] == [(2, "leave"), (3, "<module>")]


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
from rankscope.probe import listener, page
listener.start(page.own_pages[0])
try:
    try:
        raise LookupError("the first")
    except LookupError as error:
        raise ValueError("the one behind the wait") from error
finally:
    print("ready", flush=True); sys.stdin.read()
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
    assert [(each.type, each.message, each.led) for each in error.chain] == [("LookupError", "the first", "cause")]
    (main,) = [thread for thread in sample.threads if thread.main]
    assert (main.frames[-1].file, main.frames[-1].line) == (str(script), 11)


_ENDS_AT_ONCE = """
import atexit, os, sys, time
import torch
import torch.distributed as dist
from rankscope.probe.exits import let_gloo_finish


def train():
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    weight = torch.nn.Parameter(torch.ones(1000))
    weight.register_hook(lambda gradient: dist.all_reduce(gradient.clone(), async_op=True) and None)
    sys.setswitchinterval(1000)  # as on a busy machine: the thread of gloo's does not get its turn
    weight.pow(2).sum().backward()
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass


children = []
for _ in range(10):
    children.append(os.fork())
    if children[-1] == 0:
        atexit.register(let_gloo_finish)
        train()
        sys.exit(0)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_collective_begun_last_does_not_abort_the_process_on_its_way_out() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS_AT_ONCE], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.split() == ["[0,", *["0,"] * 8, "0]"], ended.stderr
