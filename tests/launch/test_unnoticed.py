"""A program under `rankscope run` notices nothing of it: same output, same tracebacks, same children."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from conftest import Ended, Rankscope, wait_until

pytestmark = pytest.mark.slow

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


def with_and_without_probe(rankscope: Rankscope, script: Path, *arguments: str) -> tuple[Ended, Ended]:
    """Both at the same time: each is the only rank of its job."""
    with_probe = rankscope.start(script, *arguments, nproc=1)
    without = rankscope.start("--no-probe", script, *arguments, nproc=1)
    return with_probe.wait(), without.wait()


def test_program_without_torch_notices_nothing_of_the_probe(rankscope: Rankscope) -> None:
    script = rankscope.script(LOOKS_AROUND)
    with_probe, without = with_and_without_probe(rankscope, script, "a", "--run-dir", "b")
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
    with_probe, without = with_and_without_probe(rankscope, script)
    for stream in ("stdout", "stderr"):
        assert with_probe.log(0, stream).decode() == without.log(0, stream).decode()
    assert with_probe.log(0, "stdout").count(b"Traceback") == 5
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
    script = rankscope.script(
        "import os\nprint(os.environ['RANKSCOPE_PAGES'], len(os.listdir(os.environ['RANKSCOPE_PAGES'])) > 0)\n"
    )
    ended = rankscope.run(script, nproc=1)
    folder, filled = ended.log(0, "stdout").decode().split()
    assert filled == "True"
    assert wait_until(lambda: not os.path.exists(folder), 2.0)


EXITS = {
    "falls off its end": "print('ended', end='')",
    "exits with a number": "import sys\nprint('half a line', end='')\nsys.exit(3)",
    "exits with words": "import sys\nsys.exit('no data')",
    "leaves at once": "import os\nprint('never flushed', end='')\nos._exit(5)",
    "ends by a signal": "import os, signal\nprint('last', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)",
    "aborts": "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
    "fails at its end": "import atexit\natexit.register(lambda: 1 / 0)\nprint('done')",
    "has a thread that goes on": "import threading, time\nthreading.Thread(target=time.sleep, args=(0.5,)).start()",
    "has a daemon thread": "import threading as t, time\nt.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "forks": "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    print(os.wait()[1])",
    "has its own hook": "import sys\nsys.excepthook = lambda *all: print('caught', all[1])\nraise ValueError('x')",
    "raises a group": "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])",
    "exits in a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise SystemExit(4) from error",
}
DESCRIPTORS = """
import os, signal, socket, sys
kinds = {os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2
         and os.path.exists(f"/proc/self/fd/{fd}")}
print(sorted(kind for kind in kinds if kind in ("socket", "pipe")))
with open(os.devnull) as file:
    print(file.fileno())
print({str(number): str(signal.getsignal(number)) for number in signal.valid_signals()})
print(sys.unraisablehook is sys.__unraisablehook__, sys.displayhook)
print(open(f"/proc/self/task/{os.getpid()}/children").read())
"""


@pytest.mark.parametrize("name", EXITS)
def test_every_way_to_end_is_as_ever(rankscope: Rankscope, name: str) -> None:
    with_probe, without = with_and_without_probe(rankscope, rankscope.script(EXITS[name] + "\n"))
    assert with_probe.code == without.code
    for stream in ("stdout", "stderr"):
        assert same_anywhere(with_probe.log(0, stream)) == same_anywhere(without.log(0, stream))


def same_anywhere(output: bytes) -> str:
    """Addresses differ from start to start; faulthandler lists compiled modules, of which the probe has one."""
    text = re.sub(r"0x[0-9a-f]+", "0x", output.decode())
    return re.sub(r"\n\nExtension modules: rankscope\.probe\._quick \(total: 1\)", "", text)


def test_descriptors_handlers_hooks_and_children_are_as_ever(rankscope: Rankscope) -> None:
    with_probe, without = with_and_without_probe(rankscope, rankscope.script(DESCRIPTORS))
    assert with_probe.log(0, "stdout").decode() == without.log(0, "stdout").decode()
    assert (with_probe.code, without.code) == (0, 0)
