"""Tracebacks as Python, torch and other people's programs print them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.evidence.model import EarlierException, RaisedException
from rankscope.evidence.tracebacks import find_tracebacks, masked


def found_in(text: str) -> tuple[RaisedException, ...]:
    return find_tracebacks(textwrap.dedent(text).splitlines())


def printed_by(tmp_path: Path, code: str) -> tuple[RaisedException, ...]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, "-S", script], capture_output=True, text=True, check=False)
    return find_tracebacks(done.stderr.splitlines())


def test_a_real_exception_with_its_frames_innermost_first(tmp_path: Path) -> None:
    (raised,) = printed_by(
        tmp_path,
        """
        import json
        def load(text):
            return json.loads(
                text,
            )
        load("{")
        """,
    )
    assert raised.type == "json.decoder.JSONDecodeError"
    assert raised.message.startswith("Expecting property name")
    assert (raised.source, raised.at, raised.thread) == ("output", None, "MainThread")
    user = [frame for frame in raised.frames if frame.user]
    assert [(frame.function, frame.line) for frame in user] == [("load", 4), ("<module>", 7)]
    assert raised.frames[0].function == "raw_decode"
    assert not raised.frames[0].user
    assert user[0].file == str(tmp_path / "train.py")


def test_a_real_chain_is_kept_in_order(tmp_path: Path) -> None:
    cause, middle, last = printed_by(
        tmp_path,
        """
        try:
            try:
                {}["lr"]
            except KeyError as error:
                raise ValueError("first line\\nsecond line") from error
        except ValueError:
            raise RuntimeError
        """,
    )
    assert (cause.type, cause.message) == ("KeyError", "'lr'")
    assert (middle.type, middle.message) == ("ValueError", "first line\nsecond line")
    assert (last.type, last.message) == ("RuntimeError", "")


def test_a_real_syntax_error_of_the_script_itself(tmp_path: Path) -> None:
    (raised,) = printed_by(tmp_path, "x = 1\ndef broken(:\n    pass\n")
    assert (raised.type, raised.message) == ("SyntaxError", "invalid syntax")
    assert [(frame.line, frame.user) for frame in raised.frames] == [(2, True)]


def test_a_real_syntax_error_of_an_imported_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = = 1\n")
    (raised,) = printed_by(tmp_path, "import model\n")
    assert raised.type == "SyntaxError"
    assert raised.frames[0].file == str(tmp_path / "model.py")
    assert raised.frames[-1].file == str(tmp_path / "train.py")


def test_a_real_recursion_error(tmp_path: Path) -> None:
    (raised,) = printed_by(tmp_path, "def f():\n    f()\nf()\n")
    assert raised.type == "RecursionError"
    assert raised.frames[-1].function == "<module>"


def test_a_real_exception_of_a_thread_names_the_thread(tmp_path: Path) -> None:
    (raised,) = printed_by(
        tmp_path, "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='feeder')\nt.start()\n"
    )
    assert (raised.type, raised.thread) == ("ZeroDivisionError", "feeder")


def test_an_exception_that_python_ignored_is_left_out(tmp_path: Path) -> None:
    code = "class Handle:\n    def __del__(self):\n        raise OSError('closed')\nHandle()\n"
    assert printed_by(tmp_path, code) == ()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_a_real_exception_group_gives_the_group_and_its_members(tmp_path: Path) -> None:
    raised = printed_by(
        tmp_path,
        """
        def fail(kind):
            try:
                raise kind("it")
            except Exception as error:
                return error
        raise ExceptionGroup("two", [fail(ValueError), fail(OSError)])
        """,
    )
    assert [exception.type for exception in raised] == ["ValueError", "OSError", "ExceptionGroup"]
    assert [(earlier.type, earlier.led) for earlier in raised[-1].chain] == [("ValueError", "group")]
    assert raised[0].frames[0].function == "fail"
    assert raised[1].message == "it"


def test_torchs_prefix_and_lines_of_others_in_between() -> None:
    (raised,) = found_in(
        """\
        [rank1]: Traceback (most recent call last):
        [rank1]:   File "/home/me/train.py", line 61, in <module>
        [rank1]:     main()
        [W1115 02:59:58.568415074 socket.cpp:113] [c10d] lost
        [rank1]:     ~~~~^^
        [rank1]:   File "/home/me/train.py", line 40, in main
        step 12
        [rank1]:     raise RuntimeError("a\\n\\nb")
        [rank1]: RuntimeError: CUDA error: out of memory

        [rank1]: Compile with `TORCH_USE_CUDA_DSA`
        [rank1]:
        [rank1]:[W1115 02:59:59 ProcessGroup.cpp:1] destroyed
        bye
        """
    )
    assert [frame.line for frame in raised.frames] == [40, 61]
    assert raised.type == "RuntimeError"
    assert raised.message == "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"


def test_a_chain_under_torchs_prefix() -> None:
    first, second = found_in(
        """\
        [rank0]: Traceback (most recent call last):
        [rank0]:   File "/me/a.py", line 1, in f
        [rank0]: KeyError: 'x'

        [rank0]: During handling of the above exception, another exception occurred:

        [rank0]: Traceback (most recent call last):
        [rank0]:   File "/me/a.py", line 2, in g
        [rank0]: torch.distributed.DistStoreError: gone
        """
    )
    assert (first.type, first.message) == ("KeyError", "'x'")
    assert (second.type, second.message) == ("torch.distributed.DistStoreError", "gone")


def test_the_exception_of_a_loaders_worker_comes_before_the_one_that_passed_it_on() -> None:
    original, outer = found_in(
        """\
        Traceback (most recent call last):
          File "/me/train.py", line 30, in <module>
            for batch in loader:
          File "/env/lib/python3.11/site-packages/torch/_utils.py", line 7, in reraise
            raise exception
        ValueError: Caught ValueError in DataLoader worker process 0.
        Original Traceback (most recent call last):
          File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 3, in _worker_loop
            data = fetcher.fetch(index)
          File "/me/data.py", line 10, in __getitem__
            raise ValueError("bad sample")
        ValueError: bad sample

        """
    )
    assert original.message == "bad sample"
    assert (original.frames[0].file, original.frames[0].line) == ("/me/data.py", 10)
    assert outer.message == "Caught ValueError in DataLoader worker process 0."
    assert [frame.line for frame in outer.frames if frame.user] == [30]


def test_the_exception_of_a_spawned_process_comes_before_the_one_that_passed_it_on() -> None:
    original, outer = found_in(
        """\
        Traceback (most recent call last):
          File "/me/launch.py", line 30, in <module>
            mp.spawn(main, nprocs=2)
        torch.multiprocessing.spawn.ProcessRaisedException:

        -- Process 0 terminated with the following error:
        Traceback (most recent call last):
          File "/me/train.py", line 5, in main
            raise ValueError("x")
        ValueError: x

        """
    )
    assert (original.type, original.message, original.frames[0].line) == ("ValueError", "x", 5)
    assert outer.type == "torch.multiprocessing.spawn.ProcessRaisedException"
    assert outer.message == "-- Process 0 terminated with the following error:"


def test_a_stray_word_is_no_exception() -> None:
    (raised,) = found_in(
        """\
        Traceback (most recent call last):
          File "/me/train.py", line 3, in <module>
        done
            load()
        struct.error: unpack requires a buffer of 4 bytes
        """
    )
    assert raised.type == "struct.error"


def test_a_message_ends_where_something_else_begins() -> None:
    (raised,) = found_in(
        """\
        ERROR:root:step failed
        Traceback (most recent call last):
          File "/me/train.py", line 3, in <module>
        RuntimeError: Error(s) in loading state_dict for Net:
        \tMissing key(s) in state_dict: "fc.weight".
        [W1115 02:59:58.1 socket.cpp:1] noise
        and more noise
        """
    )
    assert raised.message.splitlines() == [
        "Error(s) in loading state_dict for Net:",
        '\tMissing key(s) in state_dict: "fc.weight".',
    ]


def test_a_traceback_cut_off_before_its_end_is_no_exception() -> None:
    assert found_in('Traceback (most recent call last):\n  File "/me/a.py", line 1, in f\n    g()\n') == ()


LINES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        "[rank0]: Traceback (most recent call last):",
        "Original Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        '  File "/me/a.py", line 1, in f',
        '[rank0]:   File "/me/a.py", line 1, in f',
        '  File "/me/a.py", line 1',
        "ValueError: x",
        "[rank0]: ValueError",
        "SyntaxError: y",
        "",
        "[rank0]: ",
        "noise",
    ]
)


@given(st.lists(LINES | st.text(max_size=30)))
def test_any_text_can_be_read(lines: list[str]) -> None:
    for raised in find_tracebacks(lines):
        assert raised.type


CHAIN = """
def read(name):
    return {}[name]
def load(name):
    try:
        return read(name)
    except KeyError as error:
        raise ValueError("no table") from error
try:
    load("x")
except ValueError:
    raise RuntimeError("training failed")
"""


def test_the_last_of_a_real_chain_carries_what_led_to_it(tmp_path: Path) -> None:
    *_, last = printed_by(tmp_path, CHAIN)
    assert [(each.type, each.led) for each in last.chain] == [("KeyError", "cause"), ("ValueError", "context")]
    assert [(frame.function, frame.line) for frame in last.chain[0].frames] == [("read", 3), ("load", 6)]


def test_tracebacks_that_follow_each_other_without_a_link_are_no_chain() -> None:
    one = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in load\nKeyError: 1\n\n'
    first, second = found_in(one + one.replace("3", "7"))
    assert (first.chain, second.chain) == ((), ())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_the_first_member_of_a_group_brings_its_own_chain(tmp_path: Path) -> None:
    collected = (
        "except ValueError as error:\n    first = error\nraise ExceptionGroup('all', [first, OSError('second')])\n"
    )
    code = CHAIN.partition("except ValueError:")[0] + collected
    *_, last = printed_by(tmp_path, code)
    assert [(each.type, each.led) for each in last.chain] == [("KeyError", "cause"), ("ValueError", "group")]


def test_a_chain_inside_the_text_of_another_exception_stays_inside() -> None:
    inner = """\
        Traceback (most recent call last):
          File "/a/data.py", line 3, in load
        KeyError: 'x'

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "/a/data.py", line 6, in load
        ValueError: no table
        """
    outer = """\
        Traceback (most recent call last):
          File "/a/train.py", line 9, in main
        ValueError: Caught ValueError in DataLoader worker process 0.
        Original """
    *_, worker, last = found_in(textwrap.dedent(outer).rstrip("\n") + textwrap.dedent(inner))
    assert (worker.type, worker.message, [each.type for each in worker.chain]) == (
        "ValueError",
        "no table",
        ["KeyError"],
    )
    assert (last.frames[0].line, last.chain) == (9, ())


def test_an_indented_traceback_as_in_the_launchers_summary_is_read() -> None:
    (raised,) = found_in(
        """\
        Root Cause (first observed failure):
        [0]:
          exitcode  : 1 (pid: 4)
          traceback : Traceback (most recent call last):
            File "/a/train.py", line 9, in main
              load()
          KeyError: 'x'

        ====
        """
    )
    assert (raised.type, raised.message, raised.frames[0].line) == ("KeyError", "'x'", 9)


def test_chains_of_prefixed_lines_are_followed() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a/train.py", line 3, in load\nKeyError: 1\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/a/train.py", line 5, in main\nValueError: bad\n'
    )
    *_, last = find_tracebacks([f"[rank1]: {line}" for line in text.splitlines()])
    assert [(each.type, each.message, each.led) for each in last.chain] == [("KeyError", "1", "cause")]


def test_secrets_of_a_chain_are_masked() -> None:
    error = found_in('Traceback (most recent call last):\n  File "/a.py", line 3, in f\nKeyError: password=hunter2\n')[
        0
    ]
    chained = RaisedException(
        "E", "token: abc", None, (), "output", chain=(EarlierException(error.type, error.message, error.frames),)
    )
    assert "hunter2" not in str(masked(chained))
    assert "abc" not in str(masked(chained))
