"""`rankscope run` as its user sees it: output, files, exit codes, signals; and a program that notices nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time

import pytest

from conftest import COMMAND, Rankscope, wait_until

pytestmark = pytest.mark.slow


def test_good_run_shows_whole_lines_and_keeps_raw_bytes(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, sys
        rank = os.environ["RANK"]
        for piece in (b"torn ", b"line of " + rank.encode() + b"\\n", b"\\xff\\0 any byte\\n", b"10%\\r", b"100%\\n", b"no end"):
            os.write(1, piece)
        os.write(2, b"to error\\n")
        """
    )
    ended = rankscope.run(script)
    assert ended.code == 0
    for rank in (0, 1):
        shown = [line for line in ended.out.splitlines() if line.startswith(b"R%d:" % rank)]
        assert shown[:2] == [b"R%d:torn line of %d" % (rank, rank), b"R%d:\xff\0 any byte" % rank]
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
    time.sleep(0.3)  # A person's second press; an earlier one may still count as the first.
    os.killpg(started.process.pid, signal.SIGINT)
    begin = time.monotonic()
    ended = started.wait(10.0)
    assert time.monotonic() - begin < 3.0
    assert ended.code == 130
    assert b"stopped at once" in ended.err
    assert b"Traceback" not in ended.err


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
    started = rankscope.start(script)
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
    assert (ended.code, ended.verdict["outcome"]) == (0, "interrupted")


LOOKS_AROUND = """
import os, sys, threading, traceback, warnings, atexit, inspect, runpy
print(sys.argv, __name__, __file__, sys.path, sys.flags, sys.warnoptions)
print([thread.name for thread in threading.enumerate()], sys.gettrace(), sys.getprofile())
print("torch" in sys.modules, "numpy" in sys.modules, sys.modules["__main__"].__dict__.keys())
print(inspect.signature(print), os.getcwd(), sorted(os.listdir("/proc/self/task")).__len__())
print(sys.exit.__name__, os._exit.__name__)
try:
    {}["missing"]
except KeyError:
    traceback.print_exc()
warnings.warn("as ever")
def deep(number):
    if number:
        return deep(number - 1)
    raise SystemError("not caught")
deep(3)
"""


def test_program_without_torch_notices_nothing_of_the_probe(rankscope: Rankscope) -> None:
    script = rankscope.script(LOOKS_AROUND)
    with_probe = rankscope.run(script, "a", "--run-dir", "b", nproc=1)
    without = rankscope.run("--no-probe", script, "a", "--run-dir", "b", nproc=1)
    for stream in ("stdout", "stderr"):
        assert with_probe.log(0, stream).decode() == without.log(0, stream).decode()
    assert b"\nFalse False" in with_probe.log(0, "stdout")
    assert b"SystemError: not caught" in with_probe.log(0, "stderr")
    assert (with_probe.code, without.code) == (1, 1)


USES_TORCH = """
import inspect, os, pickle, threading, traceback
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
print([thread.name for thread in threading.enumerate()])
dist.init_process_group("gloo")
def attempt(action):
    try:
        action()
    except Exception:
        print(traceback.format_exc())
attempt(lambda: dist.all_reduce("not a tensor"))
attempt(lambda: dist.broadcast(torch.ones(2), src=99))
attempt(lambda: dist.all_gather([torch.ones(3)], torch.ones(2)))
attempt(lambda: dist.init_process_group("gloo"))
attempt(lambda: dist.all_reduce())
attempt(lambda: dist.barrier(device_ids="x"))
for function in (dist.all_reduce, dist.barrier, dist.new_group, dist.isend, dist.init_process_group, dist.send):
    print(function.__name__, function.__qualname__, function.__module__, inspect.signature(function))
    print(len(function.__doc__ or ""), pickle.dumps(function))
for function in (dist.all_reduce, dist.barrier, dist.send, dist.recv):
    print(inspect.getsourcefile(function))
group = dist.new_group([0])
tensor = torch.ones(4)
dist.all_reduce(tensor, group=group)
loader = DataLoader(torch.arange(6.0), batch_size=2)
print(tensor, [batch.tolist() for batch in loader], dist.Work.wait.__name__)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print(len(optimizer._optimizer_step_post_hooks), [thread.name for thread in threading.enumerate()])
def closing():
    dist.reduce("nothing", dst=0)
try:
    closing()
finally:
    dist.destroy_process_group()
"""


def test_program_with_torch_prints_the_same_to_the_last_traceback(rankscope: Rankscope) -> None:
    script = rankscope.script(USES_TORCH)
    with_probe = rankscope.run(script, nproc=1)
    without = rankscope.run("--no-probe", script, nproc=1)
    for stream in ("stdout", "stderr"):
        assert with_probe.log(0, stream).decode() == without.log(0, stream).decode()
    assert with_probe.log(0, "stdout").count(b"Traceback") == 6
    assert (with_probe.code, without.code) == (1, 1)


def test_standard_input_and_spawned_children_and_own_sitecustomize(rankscope: Rankscope) -> None:
    own = rankscope.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.set_up_by_us = 'yes'\n")
    script = rankscope.script(
        """
        import multiprocessing, os, sys
        def child(queue):
            queue.put((__name__, set_up_by_us, "torch" in sys.modules))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(), sys.stdin.read(), set_up_by_us, sys.modules["sitecustomize"].__file__)
            process.join()
            print("child ended with", process.exitcode)
        """
    )
    ended = rankscope.run(script, nproc=1, env={"PYTHONPATH": str(own)}, stdin=b"from the user")
    assert ended.code == 0
    shown = ended.log(0, "stdout").decode()
    expected = f"('__mp_main__', 'yes', False) from the user yes {own}/sitecustomize.py\nchild ended with 0\n"
    assert shown == expected
    assert ended.log(0, "stderr") == b""


@pytest.mark.parametrize("flags", [("-W", "error", "-X", "dev"), ("-O", "-s")], ids=" ".join)
def test_interpreter_options_of_the_user(rankscope: Rankscope, flags: tuple[str, ...]) -> None:
    script = rankscope.script("import multiprocessing, subprocess, http.client\nprint('went well')\n")
    ended = rankscope.run("--no-python", sys.executable, *flags, script, nproc=1)
    assert (ended.code, ended.log(0, "stdout"), ended.log(0, "stderr")) == (0, b"went well\n", b"")


def test_without_the_probe_nothing_of_it_is_in_the_ranks(rankscope: Rankscope) -> None:
    script = rankscope.script(
        "import os, sys\nprint([m for m in sys.modules if 'rankscope' in m], os.environ.get('PYTHONPATH'))\n"
    )
    ended = rankscope.run("--no-probe", script, nproc=1, env={"PYTHONPATH": "mine"})
    assert ended.log(0, "stdout") == b"[] mine\n"


def test_nothing_is_left_in_shared_memory(rankscope: Rankscope) -> None:
    script = rankscope.script("import os\nprint(os.environ['RANKSCOPE_PAGES'], len(os.listdir(os.environ['RANKSCOPE_PAGES'])) > 0)\n")
    ended = rankscope.run(script, nproc=1)
    folder, filled = ended.log(0, "stdout").decode().split()
    assert filled == "True"
    assert wait_until(lambda: not os.path.exists(folder), 2.0)
