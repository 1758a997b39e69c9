"""What the page keeps of the exceptions that end a process, a thread, or make the program end itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_probe import only_page, run_with_probe

from rankscope.evidence.model import Frame, RaisedException
from rankscope.evidence.pages import read_page

FAIL = "def load(n):\n    raise LookupError(f'no sample {n}')\n"


def ended(tmp_path: Path, program: str) -> tuple[subprocess.CompletedProcess[str], tuple[RaisedException, ...]]:
    process = run_with_probe(tmp_path, FAIL + program)
    content = read_page(only_page(tmp_path))
    assert content.progress.probe_errors == ()
    return process, content.exceptions


def places(frames: tuple[Frame, ...]) -> list[tuple[int, str]]:
    return [(frame.line, frame.function) for frame in frames]


def wrapped(raising: str) -> str:
    return f"try:\n    load(1)\nexcept LookupError as error:\n    {raising}\n"


@pytest.mark.parametrize(
    ("raising", "led"),
    [
        ("raise RuntimeError('failed') from error", "cause"),
        ("raise RuntimeError('failed')", "context"),
        ("raise RuntimeError('failed') from None", "suppressed"),
    ],
)
def test_uncaught_exception_is_stored_with_what_led_to_it(tmp_path: Path, raising: str, led: str) -> None:
    _, (error,) = ended(tmp_path, wrapped(raising))
    assert (error.type, error.message, error.source) == ("RuntimeError", "failed", "hook")
    assert places(error.frames) == [(6, "<module>")]
    (first,) = error.chain
    assert (first.type, first.message, first.led) == ("LookupError", "no sample 1", led)
    assert places(first.frames) == [(2, "load"), (4, "<module>")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_first_leaf_of_nested_groups_comes_first(tmp_path: Path) -> None:
    program = (
        "errors = []\nfor n in range(2):\n    try:\n        load(n)\n    except LookupError as error:\n"
        "        errors.append(error)\nraise ExceptionGroup('all', [ExceptionGroup('loading', errors), OSError()])\n"
    )
    process, (error,) = ended(tmp_path, program)
    assert "ExceptionGroup: all" in process.stderr
    assert (error.type, error.message) == ("ExceptionGroup", "all (2 sub-exceptions)")
    assert [(each.type, each.led) for each in error.chain] == [("LookupError", "group"), ("ExceptionGroup", "group")]
    assert places(error.chain[0].frames) == [(2, "load"), (6, "<module>")]


def test_long_chain_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    program = (
        "def again(n):\n    try:\n        again(n + 1) if n < 30 else load(n)\n"
        "    except Exception as error:\n        raise ValueError(f'level {n}') from error\nagain(0)\n"
    )
    _, (error,) = ended(tmp_path, program)
    assert (error.message, error.chain[0].type, error.chain[-1].message) == ("level 0", "LookupError", "level 1")
    assert len(error.chain) == 8


def test_chain_of_huge_texts_leaves_room_for_its_first(tmp_path: Path) -> None:
    program = (
        "def again(n):\n    try:\n        again(n + 1) if n < 7 else load(n)\n"
        "    except Exception as error:\n        raise ValueError('é' * 100_000) from error\nagain(0)\n"
    )
    _, (error,) = ended(tmp_path, program)
    assert error.chain[0].type == "LookupError"


def test_circle_of_contexts_ends(tmp_path: Path) -> None:
    program = "one, two = ValueError('one'), ValueError('two')\none.__cause__, two.__cause__ = two, one\nraise one\n"
    _, (error,) = ended(tmp_path, program)
    assert [each.message for each in error.chain] == ["two"]


def test_text_that_cannot_be_had_and_notes(tmp_path: Path) -> None:
    program = (
        "class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\n"
        "try:\n    raise Odd\nexcept Odd:\n    error = RuntimeError('failed')\n"
        "    error.__notes__ = ['on rank 1']\n    raise error\n"
    )
    _, (error,) = ended(tmp_path, program)
    assert (error.message, error.chain[0].type) == ("failed\non rank 1", "Odd")
    assert "ZeroDivisionError" in error.chain[0].message


@pytest.mark.parametrize(
    ("leave", "code"),
    [("import sys; sys.exit(3)", 3), ("import os; os._exit(4)", 4), ("exit(5)", 5)],
)
def test_exception_being_handled_when_the_program_ends_itself_is_stored(tmp_path: Path, leave: str, code: int) -> None:
    process, (error,) = ended(tmp_path, wrapped(leave))
    assert process.returncode == code
    assert (error.type, error.message, error.source) == ("LookupError", "no sample 1", "exit")
    assert places(error.frames) == [(2, "load"), (4, "<module>")]
    assert places(read_page(only_page(tmp_path)).progress.exit_site) == [(6, "<module>")]


def test_leaving_while_nothing_is_being_handled_stores_no_exception(tmp_path: Path) -> None:
    _, errors = ended(tmp_path, wrapped("pass") + "import sys\nsys.exit(3)\n")
    assert errors == ()
    (tmp_path / "again").mkdir()
    _, errors = ended(tmp_path / "again", "import sys\ntry:\n    sys.exit(1)\nexcept SystemExit:\n    sys.exit(2)\n")
    assert errors == ()


def test_exception_that_ends_a_thread_is_stored_with_its_name(tmp_path: Path) -> None:
    program = (
        "import threading\nthread = threading.Thread(target=load, args=(1,), name='trainer')\nthread.start()\n"
        "thread.join()\nthreading.Thread(target=exit).start()\n"
    )
    process, (error,) = ended(tmp_path, program)
    assert process.returncode == 0
    assert "Exception in thread trainer:" in process.stderr
    assert "rankscope" not in process.stderr
    assert (error.type, error.message, error.source, error.thread) == (
        "LookupError",
        "no sample 1",
        "thread",
        "trainer",
    )
    assert places(error.frames)[0] == (2, "load")


def test_hook_for_threads_of_the_programs_own_still_runs(tmp_path: Path) -> None:
    program = (
        "import threading\nbefore = threading.excepthook\ndef own(args):\n    print('own', args.exc_type.__name__)\n"
        "    before(args)\nthreading.excepthook = own\nthreading.Thread(target=load, args=(1,)).start()\n"
    )
    process, (error,) = ended(tmp_path, program)
    assert process.stdout == "own LookupError\n"
    assert error.source == "thread"


def test_interrupt_while_another_exception_is_handled_keeps_both(tmp_path: Path) -> None:
    # Where the tests run in the background, a shell has told them to ignore this signal.
    head = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program = head + wrapped("os.kill(os.getpid(), signal.SIGINT)")
    process, (error,) = ended(tmp_path, program)
    assert process.returncode != 0
    assert (error.type, [each.type for each in error.chain]) == ("KeyboardInterrupt", ["LookupError"])


def test_traceback_that_the_program_hands_to_the_hook_is_printed(tmp_path: Path) -> None:
    """Of a worker, say, whose exception was made anew here and has none of its own."""
    program = (
        "import sys\ntry:\n    load(1)\nexcept LookupError as error:\n"
        "    sys.excepthook(KeyError, KeyError('of a worker'), error.__traceback__)\n"
    )
    process, _ = ended(tmp_path, program)
    assert process.returncode == 0
    assert ", in load\n" in process.stderr
    assert process.stderr.endswith("KeyError: 'of a worker'\n")


@pytest.mark.parametrize("traceback", ["None", "'no traceback'"])
def test_hook_that_is_called_with_no_traceback_prints_what_python_prints(tmp_path: Path, traceback: str) -> None:
    program = f"import sys\nsys.excepthook(KeyError, KeyError('k'), {traceback})\n"
    process, _ = ended(tmp_path, program)
    (tmp_path / "plain.py").write_text(program)
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "plain.py")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (process.returncode, process.stderr) == (plain.returncode, plain.stderr)


def test_status_that_is_neither_true_nor_false_is_printed(tmp_path: Path) -> None:
    """As arrays are."""
    program = (
        "import sys\nclass Array:\n    def __bool__(self):\n        raise ValueError('ambiguous')\n"
        "    def __repr__(self):\n        return '[1, 2]'\n    def __eq__(self, other):\n        return self\n"
        "sys.exit(Array())\n"
    )
    process, errors = ended(tmp_path, program)
    assert (process.returncode, process.stderr, errors) == (1, "[1, 2]\n", ())


def test_functions_that_are_watched_are_pickled_by_their_names(tmp_path: Path) -> None:
    program = (
        "import os, pickle, sys, threading\n"
        "for each in (sys.exit, sys.excepthook, os._exit, os.close, os.closerange, os.dup2, threading.excepthook):\n"
        "    assert pickle.loads(pickle.dumps(each)) is each, each\n"
        "import posix\nassert posix._exit is os._exit\nassert posix.close is os.close\n"
        "read = pickle.dumps(os._exit)\n"
        "import subprocess\n"
        "code = 'import pickle, sys; pickle.loads(sys.stdin.buffer.read())(7)'\n"
        "without = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}\n"
        "print(subprocess.run([sys.executable, '-c', code], input=read, env=without).returncode)\n"
    )
    process, _ = ended(tmp_path, program)
    assert (process.returncode, process.stdout, process.stderr) == (0, "7\n", "")
