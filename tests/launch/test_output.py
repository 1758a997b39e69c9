"""Output of real child processes through the pump."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.launch.lines import LONGEST_LINE, LineCutter
from rankscope.launch.output import OutputPump

OUT = (0, "stdout")


class Writes(io.BytesIO):
    """A console that remembers each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.calls.append(bytes(data))
        return super().write(data)


class Rig:
    def __init__(self, drop: Callable[[bytes], bool] | None = None) -> None:
        self.stdout, self.stderr = Writes(), Writes()
        self.pump = OutputPump(self.stdout, self.stderr, drop=drop)

    @property
    def shown(self) -> list[bytes]:
        return self.stdout.getvalue().splitlines()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.pump.finish(10)


def start(path: str, script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A child that prints to the path, opened as torch's elastic agent opens it."""
    with open(path, "w") as stdout:
        return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=stdout, stderr=stdout)


def run(path: str, script: str, *arguments: str) -> None:
    assert start(path, script, *arguments).wait(60) == 0


def wait_until(true: Callable[[], bool], problem: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)


def raw(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def test_console_lines_have_the_prefix_and_the_file_has_the_exact_bytes(rig: Rig, tmp_path: Path) -> None:
    path = rig.pump.open(OUT, "R0: ", tmp_path / "deep" / "out.log", console=True)
    begun = time.time()
    run(path, r"import os; os.write(1, b'one\n\ncolour \x1b[31mred\x1b[0m\nbad \xff\xfe\nwindows\r\nno end')")
    rig.pump.finish(10)
    lines = [b"one", b"", b"colour \x1b[31mred\x1b[0m", b"bad \xff\xfe", b"windows", b"no end"]
    assert rig.stdout.getvalue() == b"".join(b"R0: " + line + b"\n" for line in lines)
    raw_bytes = b"one\n\ncolour \x1b[31mred\x1b[0m\nbad \xff\xfe\nwindows\r\nno end"
    assert (tmp_path / "deep" / "out.log").read_bytes() == raw_bytes
    assert (tmp_path / "deep" / "out.log").stat().st_mode & 0o777 == 0o600
    last = rig.pump.last_output_at(OUT)
    assert last is not None
    assert begun <= last <= time.time()
    assert rig.pump.problems == ()


def test_two_ranks_that_write_parts_of_lines_are_never_mixed(rig: Rig) -> None:
    script = """
import os, sys, time
who = sys.argv[1].encode()
for number in range(400):
    for part in (who, b"-%d-" % number, who * 30, b" end\\n"):
        os.write(1, part)
        if number % 20 == 0:
            time.sleep(0.002)
"""
    paths = [rig.pump.open((rank, "stdout"), f"R{rank}: ", None, console=True) for rank in (0, 1)]
    children = [start(path, script, "ab"[rank]) for rank, path in enumerate(paths)]
    assert [child.wait(60) for child in children] == [0, 0]
    rig.pump.finish(10)
    for rank, who in enumerate("ab"):
        expected = [f"R{rank}: {who}-{number}-{who * 30} end".encode() for number in range(400)]
        assert [line for line in rig.shown if line.startswith(b"R%d: " % rank)] == expected
    assert len(rig.shown) == 800
    assert all(call.endswith(b"\n") and call.startswith(b"R") for call in rig.stdout.calls)


def test_many_lines_arrive_complete_and_in_order(rig: Rig, tmp_path: Path) -> None:
    path = rig.pump.open(OUT, "R0: ", tmp_path / "out.log", console=True)
    run(path, "for number in range(200_000): print('line', number)")
    rig.pump.finish(30)
    assert rig.shown == [b"R0: line %d" % number for number in range(200_000)]
    assert (tmp_path / "out.log").read_bytes() == b"".join(b"line %d\n" % n for n in range(200_000))
    assert rig.pump.tail(OUT, 2) == ("line 199998", "line 199999")


def test_a_line_that_is_too_long_comes_in_pieces_with_the_prefix_each(rig: Rig, tmp_path: Path) -> None:
    path = rig.pump.open(OUT, "R0: ", tmp_path / "out.log", console=True)
    run(path, f"print('x' * {2 * LONGEST_LINE + 10}); print('next')")
    rig.pump.finish(10)
    assert [len(line) - 4 for line in rig.shown] == [LONGEST_LINE, LONGEST_LINE, 10, 4]
    assert all(line.startswith(b"R0: ") for line in rig.shown)
    assert (tmp_path / "out.log").stat().st_size == 2 * LONGEST_LINE + 16


def test_a_progress_bar_is_shown_at_first_and_at_last_and_kept_whole_in_the_file(rig: Rig, tmp_path: Path) -> None:
    path = rig.pump.open(OUT, "R0: ", tmp_path / "out.log", console=True)
    script = """
import sys, time
for percent in range(101):
    sys.stderr.write(f"\\r{percent:3d}%|####|")
    time.sleep(0.002)
sys.stderr.write("\\n")
print("done")
"""
    run(path, script)
    rig.pump.finish(10)
    assert rig.shown[-2:] == [b"R0: 100%|####|", b"R0: done"]
    assert 3 <= len(rig.shown) <= 4
    states = b"".join(b"\r%3d%%|####|" % percent for percent in range(101))
    assert (tmp_path / "out.log").read_bytes() == states + b"\ndone\n"
    assert rig.pump.tail(OUT) == ("100%|####|", "done")


def test_a_progress_bar_that_never_ends_its_line_leaves_its_last_state(rig: Rig) -> None:
    path = rig.pump.open(OUT, "R0: ", None, console=True)
    run(path, r"import os, time; os.write(1, b'\r 1%'); time.sleep(0.3); os.write(1, b'\r 2%\r 3%')")
    wait_until(lambda: rig.pump.tail(OUT) == (" 3%",), "the tail never had the newest state")
    rig.pump.finish(10)
    assert rig.shown == [b"R0:  1%", b"R0:  3%"]


def test_a_state_that_is_shown_already_is_not_repeated_at_the_end(rig: Rig) -> None:
    path = rig.pump.open(OUT, "R0: ", None, console=True)
    run(path, r"import os, time; os.write(1, b'\r 50%'); time.sleep(0.3); os.write(1, b'\nafter\n')")
    rig.pump.finish(10)
    assert rig.shown == [b"R0:  50%", b"R0: after"]


def test_cursor_moves_do_not_write_over_other_ranks_lines(rig: Rig) -> None:
    raw(rig.pump.open(OUT, "R0: ", None, console=True), b"a\x1b[A\x1b[2Kb\x1b[1;32mgreen\x1b[0m\n")
    rig.pump.finish(10)
    assert rig.shown == [b"R0: ab\x1b[1;32mgreen\x1b[0m"]


def test_dropped_lines_reach_neither_console_nor_file_nor_tail(tmp_path: Path) -> None:
    rig = Rig(drop=lambda line: b"ours" in line)
    path = rig.pump.open(OUT, "R0: ", tmp_path / "out.log", console=True)
    run(path, r"import os; os.write(1, b'a\nours 1\n\r 5%\r 6%'); os.write(1, b'\nb\nit is ours\r\nlast')")
    rig.pump.finish(10)
    assert (tmp_path / "out.log").read_bytes() == b"a\n\r 5%\r 6%\nb\nlast"
    assert rig.shown[-3:] == [b"R0:  6%", b"R0: b", b"R0: last"]
    assert rig.pump.tail(OUT) == ("a", " 6%", "b", "last")


def test_a_full_disk_is_remembered_once_and_the_console_goes_on(rig: Rig) -> None:
    path = rig.pump.open(OUT, "R0: ", Path("/dev/full"), console=True)
    run(path, "for number in range(1000): print(number, flush=number % 100 == 0)")
    rig.pump.finish(10)
    assert len(rig.shown) == 1000
    assert rig.pump.problems == ("/dev/full: No space left on device",)


def test_a_file_that_fails_for_a_while_has_everything_in_the_end(rig: Rig, tmp_path: Path) -> None:
    blocker = tmp_path / "logs"
    blocker.write_text("not a folder")
    path = rig.pump.open(OUT, "R0: ", blocker / "out.log", console=False)
    raw(path, b"early\n")
    wait_until(lambda: rig.pump.tail(OUT) == ("early",), "not read")
    assert len(rig.pump.problems) == 1
    blocker.unlink()
    raw(path, b"late\n")
    rig.pump.finish(10)
    assert (tmp_path / "logs" / "out.log").read_bytes() == b"early\nlate\n"
    assert rig.shown == []


def test_a_closed_console_does_not_stop_the_files(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as console:
        pump = OutputPump(console, console)
        run(pump.open(OUT, "R0: ", tmp_path / "out.log", console=True), "for n in range(9999): print(n)")
        pump.finish(10)
    assert (tmp_path / "out.log").read_bytes().splitlines()[-1] == b"9998"
    assert pump.problems == ("stdout: Broken pipe",)


def test_finish_returns_in_time_when_the_console_blocks(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reader:
        with open(write_end, "wb") as console:
            pump = OutputPump(console, console)
            path = pump.open(OUT, "", tmp_path / "out.log", console=True)
            child = start(path, "print('x' * 200_000)")
            wait_until(lambda: pump.blocked_s > 0.2, "the console never blocked")
            begun = time.monotonic()
            pump.finish(0.3)
            assert time.monotonic() - begun < 2
            # Once somebody reads again, all of it arrives.
            received: list[bytes] = []
            drain = threading.Thread(target=lambda: received.extend(reader.read1() for _ in range(40)))
            drain.start()
            assert child.wait(30) == 0
            pump.finish(10)
        drain.join(10)
    assert b"".join(received).count(b"x") >= LONGEST_LINE


def test_finish_does_not_need_the_writers_to_end(rig: Rig) -> None:
    path = rig.pump.open(OUT, "R0: ", None, console=True)
    with open(path, "wb", buffering=0) as held_by_someone:
        held_by_someone.write(b"written\nhalf")
        begun = time.monotonic()
        rig.pump.finish(10)
        assert time.monotonic() - begun < 5
        rig.pump.finish(10)
    assert rig.shown == [b"R0: written", b"R0: half"]
    with pytest.raises(RuntimeError):
        rig.pump.open(OUT, "R0: ", None, console=True)


def test_after_a_restart_the_same_key_has_another_file(rig: Rig, tmp_path: Path) -> None:
    for attempt in (0, 1):
        path = rig.pump.open(OUT, "R0: ", tmp_path / f"{attempt}.log", console=True)
        run(path, f"print('attempt', {attempt})")
        wait_until(lambda a=attempt: rig.pump.tail(OUT) == (f"attempt {a}",), "not read")  # type: ignore[misc]
    rig.pump.finish(10)
    assert [(tmp_path / f"{attempt}.log").read_text() for attempt in (0, 1)] == ["attempt 0\n", "attempt 1\n"]
    assert rig.shown == [b"R0: attempt 0", b"R0: attempt 1"]


def test_a_released_stream_ends_with_its_writer(rig: Rig) -> None:
    path = rig.pump.open(OUT, "R0: ", None, console=True)
    child = start(path, "print('half', end='')")
    rig.pump.release(OUT)
    assert child.wait(30) == 0
    wait_until(lambda: rig.shown == [b"R0: half"], "the unfinished line was not shown at the end of the stream")


def test_matching_console_lines_are_copied_with_their_prefix(rig: Rig, tmp_path: Path) -> None:
    rig.pump.add_copy("stdout", ["loss", "acc"], tmp_path / "filtered.log")
    raw(rig.pump.open(OUT, "R0: ", None, console=True), b"loss 1\nother\nacc 2\n")
    raw(rig.pump.open((1, "stdout"), "R1: ", None, console=False), b"loss of a hidden rank\n")
    raw(rig.pump.open((0, "stderr"), "R0: ", None, console=True), b"loss on stderr\n")
    rig.pump.finish(10)
    assert (tmp_path / "filtered.log").read_bytes() == b"R0: loss 1\nR0: acc 2\n"
    assert rig.stderr.getvalue() == b"R0: loss on stderr\n"


def test_a_key_that_was_never_opened_has_nothing(rig: Rig) -> None:
    assert rig.pump.tail((7, "stderr")) == ()
    assert rig.pump.last_output_at((7, "stderr")) is None


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\r", b"\r\n", b"a\rb\n"]), max_size=30))
def test_cutting_loses_no_byte_wherever_the_chunks_end(chunks: list[bytes]) -> None:
    cutter = LineCutter()
    cuts = [cut for chunk in chunks for cut in cutter.feed(chunk)]
    cuts += cutter.end()
    assert b"".join(cut.raw for cut in cuts) == b"".join(chunks)
    assert all(cut.text is None or not {b"\n", b"\r"} & {bytes([c]) for c in cut.text} for cut in cuts)


def test_a_traceback_after_the_stop_is_in_the_file_only_and_one_from_before_is_shown(rig: Rig, tmp_path: Path) -> None:
    path = rig.pump.open(OUT, "R0: ", tmp_path / "out.log", console=True)
    traceback = b'Traceback (most recent call last):\n  File "a.py", line 1\nKeyboardInterrupt\n'
    with open(path, "wb", buffering=0) as file:
        file.write(b"before\n" + traceback)
        rig.pump.told_to_stop([0])
        file.write(traceback + b"last words\n")
    rig.pump.finish(10)
    shown = [b"before", *traceback.splitlines(), b"last words"]
    assert rig.shown == [b"R0: " + line for line in shown]
    assert (tmp_path / "out.log").read_bytes().count(b"Traceback") == 2
