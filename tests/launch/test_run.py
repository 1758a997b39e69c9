"""`rankscope run` as its user sees it: output, files, exit codes, restarts, signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import time

import pytest

from conftest import COMMAND, Rankscope

pytestmark = pytest.mark.slow


def test_good_run_shows_whole_lines_and_keeps_raw_bytes(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, sys
        rank = os.environ["RANK"]
        os.write(1, b"torn ")
        os.write(1, b"line of " + rank.encode() + b"\\n\\xff\\0 any byte\\n10%\\r")
        os.write(1, b"100%\\nno end")
        os.write(2, b"to error\\n")
        """
    )
    ended = rankscope.run("--no-merge", script)
    assert ended.code == 0
    for rank in (0, 1):
        shown = [line for line in ended.out.splitlines() if line.startswith(b"R%d:" % rank)]
        assert shown[:2] == [b"R%d:torn line of %d" % (rank, rank), b"R%d:\xff any byte" % rank]
        assert shown[-2:] == [b"R%d:100%%" % rank, b"R%d:no end" % rank]
        assert b"R%d:to error" % rank in ended.err.splitlines()
        raw = b"torn line of %d\n\xff\0 any byte\n10%%\r100%%\nno end" % rank
        assert ended.log(rank, "stdout") == raw
        assert ended.log(rank, "stderr") == b"to error\n"
    assert all(line.startswith((b"R0:", b"R1:")) for line in ended.out.splitlines())
    verdict = ended.verdict
    assert (verdict["outcome"], verdict["cause"], verdict["culprits"]) == ("ok", None, [])
    assert (verdict["exit_codes"], verdict["world_size"]) == ({"0": 0, "1": 0}, 2)
    assert verdict["started_at"] < verdict["ended_at"]
    assert b"CRASH" not in ended.err


@pytest.mark.parametrize(
    ("ending", "code", "rank_code"),
    [
        ("sys.exit(7)", 7, 7),
        ("os._exit(42)", 42, 42),
        ("sys.exit('a text')", 1, 1),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, -11),
    ],
)
def test_exit_code_of_the_culprit_is_kept(rankscope: Rankscope, ending: str, code: int, rank_code: int) -> None:
    script = rankscope.script(
        f"""
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            {ending}
        time.sleep(60)
        """
    )
    ended = rankscope.run(script)
    assert ended.code == code
    assert ended.verdict["exit_codes"]["1"] == rank_code
    assert [culprit["rank"] for culprit in ended.verdict["culprits"]] == [1]
    assert ended.verdict["outcome"] == "crash"
    assert b"CRASH" in ended.err
    assert " ".join(ended.err.decode().split()).count(ended.verdict["headline"]) == 1, "once, in the report"
    assert b"Traceback" not in ended.err
    assert (ended.run_dir / ended.verdict["evidence"]).is_dir()


def test_exception_names_the_users_line_though_the_program_has_its_own_hook(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import sys
        def mine(kind, error, traceback):
            print("my own hook:", error, file=sys.stderr)
        sys.excepthook = mine
        def load():
            raise LookupError("no such sample")
        load()
        """
    )
    ended = rankscope.run(script, nproc=1)
    assert ended.code == 1
    assert ended.log(0, "stderr") == b"my own hook: no such sample\n"
    (culprit,) = ended.verdict["culprits"]
    assert ended.verdict["cause"] == "exception"
    assert culprit["where"] == {"file": str(script), "line": 6, "function": "load"}


def test_module_and_json_verdict_on_standard_output(rankscope: Rankscope) -> None:
    rankscope.script("import sys\nprint(__name__, sys.argv[1:])\n", "trainer.py")
    ended = rankscope.run("--json", "-m", "trainer", "--lr", "1", env={"PYTHONPATH": "."}, nproc=1)
    first, _, rest = ended.out.decode().partition("\n")
    assert first == "R0:__main__ ['--lr', '1']"
    assert json.loads(rest) == ended.verdict
    assert ended.code == 0


def test_program_that_is_no_python(rankscope: Rankscope) -> None:
    script = rankscope.script('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $*"\nexit $((RANK * 9))\n', "job.sh")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    ended = rankscope.run("--no-python", script, "a b")
    assert sorted(ended.out.splitlines()) == [b"R0:rank 0 of 2: a b", b"R1:rank 1 of 2: a b"]
    assert ended.code == 9
    assert ended.verdict["exit_codes"] == {"0": 0, "1": 9}


def test_restarted_job_that_ends_well_is_well(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, sys
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("attempt", attempt)
        if attempt == "0" and os.environ["RANK"] == "1":
            sys.exit(5)
        """
    )
    ended = rankscope.run("--max-restarts", "1", script)
    assert ended.code == 0
    assert ended.verdict["outcome"] == "ok"
    assert any("attempt 0" in note and "rank 1" in note for note in ended.verdict["notes"])
    assert ended.log(1, "stdout", attempt=0) == b"attempt 0\n"
    assert ended.log(1, "stdout", attempt=1) == b"attempt 1\n"
    assert (ended.run_dir / "evidence/attempt_0").is_dir()


def test_earlier_run_in_the_same_folder_is_moved_aside(rankscope: Rankscope) -> None:
    script = rankscope.script("print('again')\n")
    folder = rankscope.folder / "same"
    for _ in range(2):
        assert rankscope.command(*COMMAND, "run", "--run-dir", folder, script).wait().code == 0
    for each in (folder, rankscope.folder / "same.1"):
        assert (each / "logs/attempt_0/0/stdout.log").read_bytes() == b"again\n"
        assert (each / "verdict.json").exists()


CLEANS_UP = """
import os, sys, time
rank = os.environ["RANK"]
try:
    print("ready", rank, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("cleaned up", rank, flush=True)
    sys.exit(1)
"""


def test_ctrl_c_lets_the_ranks_clean_up(rankscope: Rankscope) -> None:
    started = rankscope.start(rankscope.script(CLEANS_UP))
    started.shows("ready 0", "ready 1")
    os.killpg(started.process.pid, signal.SIGINT)
    ended = started.wait(20.0)
    assert ended.code == 130
    assert {b"R0:cleaned up 0", b"R1:cleaned up 1"} <= set(ended.out.splitlines())
    verdict = ended.verdict
    assert (verdict["outcome"], verdict["cause"], verdict["culprits"]) == ("interrupted", None, [])
    assert b"SIGINT" in ended.err
    assert b"Traceback" not in ended.err


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", os.environ["RANK"], flush=True)
while True:
    time.sleep(1)
"""


def test_second_ctrl_c_ends_it_at_once(rankscope: Rankscope) -> None:
    started = rankscope.start(rankscope.script(STUBBORN))
    started.shows("ready 0", "ready 1")
    os.killpg(started.process.pid, signal.SIGINT)
    started.shows("taking a last look")
    time.sleep(0.8)  # What comes within half a second is taken for the same request, sent to process and group.
    os.killpg(started.process.pid, signal.SIGINT)
    begin = time.monotonic()
    ended = started.wait(10.0)
    assert time.monotonic() - begin < 3.0
    assert ended.code == 130
    assert b"stopped at once" in ended.err
    assert b"Traceback" not in ended.err
    assert (ended.verdict["outcome"], ended.verdict["cause"]) == ("interrupted", None)


def test_sigterm_of_a_scheduler_ends_in_143(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, signal, sys, time
        def stop(number, frame):
            print("asked to end", number, flush=True)
            sys.exit(3)
        signal.signal(signal.SIGTERM, stop)
        print("ready", os.environ["RANK"], flush=True)
        time.sleep(60)
        """
    )
    started = rankscope.start("--no-merge", script)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, signal.SIGTERM)
    ended = started.wait(20.0)
    assert {b"R0:asked to end 15", b"R1:asked to end 15"} <= set(ended.out.splitlines())
    assert (ended.code, ended.verdict["outcome"]) == (143, "interrupted")
    assert ended.verdict["exit_codes"] == {"0": 3, "1": 3}


def test_ranks_that_answer_sigterm_with_a_good_end_were_interrupted_all_the_same(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    started = rankscope.start(script, nproc=1)
    started.shows("ready")
    os.kill(started.process.pid, signal.SIGTERM)
    ended = started.wait(20.0)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["exit_codes"]) == (143, "interrupted", {"0": 0})


def test_what_fails_inside_the_probe_is_told_beside_the_verdict(rankscope: Rankscope) -> None:
    """As its comments promise: what it swallows is shown in the report, and so is a start of it that failed."""
    script = rankscope.script(
        """
        import os
        from rankscope.probe.page import own_pages
        own_pages[0].error("hook of all_reduce: KeyError: 'x'")
        with open(os.environ["RANKSCOPE_PROBE_ERRORS"], "a") as file:
            file.write("77: the probe did not start: OSError: no space\\n")
        """
    )
    ended = rankscope.run(script)
    assert (ended.code, ended.verdict["outcome"]) == (0, "ok")
    assert [note for note in ended.verdict["notes"] if "probe" in note] == [
        "rankscope's probe failed in ranks 0, 1, the program did not: hook of all_reduce: KeyError: 'x'",
        "rankscope's probe failed, the program did not: 77: the probe did not start: OSError: no space",
    ]
    assert "hook of all_reduce" in " ".join(ended.err.decode().split())
