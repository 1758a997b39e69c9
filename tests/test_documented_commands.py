"""Every command in README.md and docs/ is run: as it stands, or as near to it as one small machine allows.

A block of a page says what it is: `bash` is commands, `console` is commands after `$ ` with what they print, `text` is
neither. A command in the middle of a sentence counts where it begins with a program of ours. One that is written down
and is not in the tables below fails the first test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankscope
from rankscope.evidence.store import save_evidence
from rankscope.train.settings import preset_names

sys.path.insert(0, str(Path(__file__).parent / "evidence"))
import flight_dumps

sys.path.insert(0, str(Path(__file__).parent / "report"))
from recorded_incidents import recorded

ROOT = Path(__file__).resolve().parent.parent
FROM_TESTS = (ROOT / "docs" / "features.md", ROOT / "docs" / "launchers.md")
"""Made from tests that run their commands: scripts/features.py, tests/launch/test_launchers.py."""
PAGES = (
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in FROM_TESTS),
    ROOT / "benchmarks" / "README.md",
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = frozenset({"bash", "console", "text", "python", "yaml"})
IN_A_SENTENCE = re.compile(
    r"(?!.*(?: \[|\.\.\.|\\\|))(?:(?:rankscope \w+|bash|python|torchrun|pip) .+|.*\| rankscope .*)"
)
"""Not: `rankscope gpus`, a verb by its name; `rankscope check [STEP ...]`, which only tells what can be written."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a documented command is run, and what comes of it."""

    code: int = 0
    shows: str = ""
    instead: str | None = None
    """What is run in its place; None: the command itself."""
    because: str = ""
    """Why not itself."""
    within: str | None = None
    """The command that runs it; it is not run once more."""


LIMIT_S = 120.0
"""For one command; most take a few seconds."""

TRAINING: dict[str, Way] = {
    "bash run_training.sh --debug": Way(shows="Step [9/10] | Loss: "),
    "rankscope prepare --debug": Way(within="bash run_training.sh --debug"),
    "rankscope train --debug": Way(within="bash run_training.sh --debug"),
    "rankscope train --debug --show-config": Way(shows='"max_steps": 10,'),
    "rankscope train --preset 32b --plan": Way(shows="32,763,417,600 parameters"),
    "rankscope prepare --preset gpt2-124m --show-config": Way(shows='"layers": 12,'),
    "rankscope prepare --config my.yaml --override data.tokenizer=bytes": Way(shows="with the tokenizer bytes"),
    "rankscope train --debug --override checkpoint.every=5": Way(shows="checkpoint of step 5 saved"),
    "rankscope train --debug --resume auto": Way(shows="step_00000010"),
    "rankscope train --debug --export weights": Way(shows="model.safetensors"),
    "rankscope train --debug --fault nan@rank=1,step=5": Way(76, "First: the output of layers.1 (Block)"),
    "rankscope train --replay-nan .checkpoints/nan_grad_step_5.pt": Way(76, "layers.1"),
    "rankscope train --debug --fault skip@rank=1,step=5": Way(75, "rank 1 skipped the barrier at meet_the_others"),
    "rankscope train --debug --fault hang -- --stall-after 5": Way(75, "rank 1 is stuck in wait_for_silent_service"),
}
"""In this order, in one folder, as somebody would who reads the pages."""

SLURM = "there is no Slurm here"
RUNNING: dict[str, Way] = {
    "rankscope run train.py": Way(shows="R0:rank 0 of 1"),
    "rankscope run --nproc-per-node 4 train.py --lr 3e-4": Way(shows="R3:rank 3 of 4, --lr 3e-4"),
    "rankscope run --on-nan stop --nproc-per-node 4 train.py": Way(shows="R3:rank 3 of 4"),
    "rankscope run --page --nproc-per-node 4 train.py": Way(shows="rankscope: page: http://127.0.0.1:"),
    "rankscope run --page 8080 --nproc-per-node 4 train.py": Way(
        shows="rankscope: page: http://127.0.0.1:",
        instead="rankscope run --page 0 --nproc-per-node 4 train.py",
        because="the port may be taken",
    ),
    "rankscope run --notify https://hooks.slack.com/services/T0/B0/XYZ --nproc-per-node 4 train.py": Way(
        shows="R3:rank 3 of 4",
        instead="rankscope run --notify 'cat > ended.json' --nproc-per-node 4 train.py && grep -q outcome ended.json",
        because="nobody listens there",
    ),
    "rankscope watch --notify 'echo \"$RANKSCOPE_OUTCOME $RANKSCOPE_RUN\" >> ended.txt' -- "
    "torchrun --standalone --nproc-per-node 2 train.py": Way(shows="rank 1 of 2"),
    "rankscope watch -- python train.py": Way(
        shows="rank 1 of 2",
        instead="rankscope watch -- torchrun --standalone --nproc-per-node 2 train.py",
        because="train.py is no Lightning program here; tests/launch/test_launchers.py has one",
    ),
    "rankscope watch -- accelerate launch train.py": Way(
        shows="--run-dir",
        instead="rankscope watch --help",
        because="accelerate asks for a configuration; tests/launch/test_launchers.py gives it one",
    ),
    "rankscope run --gpus 0,3": Way(shows="--gpus", instead="rankscope run --help", because="needs GPUs"),
    "srun --nodes 2 --ntasks-per-node=1 rankscope run --nproc-per-node 8 train.py": Way(
        shows="srun --ntasks-per-node=1",
        instead="rankscope launch slurm --nodes 2 --dry-run -- train.py",
        because=f"{SLURM}; the script that is made runs the same",
    ),
    "rankscope launch slurm --nodes 2 --dry-run -- train.py": Way(shows="#SBATCH --nodes=2"),
    "rankscope launch slurm --nodes 2 --gpus-per-node 8 --time 1-00:00:00 -- train.py": Way(
        shows="#SBATCH --time=1-00:00:00",
        instead="rankscope launch slurm --nodes 2 --gpus-per-node 8 --time 1-00:00:00 --dry-run -- train.py",
        because=SLURM,
    ),
    "rankscope launch sky --nodes 2 --gpus 8 --gpu H100 -- train.py": Way(shows="H100:8"),
    "rankscope launch k8s --nodes 2 --gpus 8 --image IMAGE -- train.py": Way(shows='kind: "Job"'),
    "pip install 'rankscope[vast]'; vastai set api-key KEY": Way(
        shows="vast = [", instead="grep '^vast = ' pyproject.toml", because="needs a package index and an account"
    ),
    "rankscope launch vast --config my.yaml --num-gpus 2 --gpu H100_SXM --max-price 6 --auto-shutdown": Way(
        shows="H100",
        instead="rankscope launch vast --config my.yaml --num-gpus 2 --gpu H100_SXM --max-price 6 --dry-run",
        because="rents a machine",
    ),
    "rankscope launch vast --auto-shutdown -- --nproc-per-node 4 train.py --lr 1e-4": Way(
        shows="num_gpus=4",
        instead="rankscope launch vast --auto-shutdown --dry-run -- --nproc-per-node 4 train.py --lr 1e-4",
        because="rents a machine",
    ),
    "rankscope launch vast --config my.yaml --num-gpus 2 --dry-run": Way(shows="my.yaml"),
    "rankscope check storage limits": Way(shows="storage"),
    "rankscope check imports --script train.py": Way(shows="imports"),
    "rankscope check single --repeat 60": Way(
        shows="the same bits", instead="rankscope check single --repeat 2", because="takes a minute"
    ),
    "rankscope check": Way(
        shows="limits", instead="rankscope check limits", because="all steps take a minute; each has its own tests"
    ),
    "rankscope check --json": Way(
        shows='"step": "limits"', instead="rankscope check limits --json", because="all steps take a minute"
    ),
    "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 -m rankscope.checks.ddp": Way(
        instead="torchrun --standalone --nproc-per-node 2 -m rankscope.checks.ddp", because="this is one machine"
    ),
    "pip install 'rankscope[train]'": Way(
        shows="train = [", instead="grep '^train = ' pyproject.toml", because="needs a package index"
    ),
    "pip install .": Way(
        shows=f"rankscope-{rankscope.__version__}.dist-info",
        instead=f"python -m pip install --no-index --no-deps --no-build-isolation --target here '{ROOT}' && ls here",
        because="what it depends on needs a package index; scripts/matrix.py installs it with all of that",
    ),
    "bash run_tests.sh": Way(shows="--fast", instead="bash run_tests.sh --help", because="it runs this very test"),
    "python zoo/run.py --nccl": Way(shows="val_loss", instead="python zoo/run.py --nccl --list", because="needs a GPU"),
    "python zoo/attach.py --nccl": Way(shows="--jobs", instead="python zoo/attach.py --help", because="needs a GPU"),
    "python zoo/compare.py": Way(
        shows="--tools", instead="python zoo/compare.py --help", because="runs the zoo, half an hour"
    ),
    "python zoo/compare.py --tools torchrun,torchfrtrace,ft_launcher --into FILE --jobs 5": Way(
        shows="torchfrtrace", instead="python zoo/compare.py --help", because="runs the zoo, half an hour"
    ),
    "python zoo/compare.py --tools rankscope --into FILE": Way(
        shows="rankscope", instead="python zoo/compare.py --help", because="runs the zoo, half an hour"
    ),
    "python zoo/compare.py --into FILE --table docs/zoo.md": Way(
        instead="python zoo/compare.py --into zoo/results/2026-11-15-tools.json --table zoo.md",
        because="FILE is the reader's own",
    ),
    "pip install --no-deps --target .peers nvidia-resiliency-ext==0.4.1 defusedxml": Way(
        shows="nvidia-resiliency-ext==0.4.1", instead="grep resiliency-ext== zoo/peers.py", because="needs an index"
    ),
    "torchrun --standalone --nproc-per-node N train.py": Way(
        shows="--nproc-per-node", instead="torchrun --help", because="N is any number"
    ),
    "python benchmarks/overhead.py --starts 30 --pairs 12": Way(
        shows="--pairs", instead="python benchmarks/overhead.py --help", because="takes minutes on a quiet machine"
    ),
    "python benchmarks/chaos.py --rounds 200 --jobs 2 --out benchmarks/results/chaos.jsonl": Way(
        shows="--rounds", instead="python benchmarks/chaos.py --help", because="takes an hour"
    ),
    "python benchmarks/chaos.py --table benchmarks/results/chaos.jsonl": Way(shows="rounds with a fault"),
    "python benchmarks/fuzz.py --inputs 1000000 --out benchmarks/results/fuzz.json": Way(
        shows="--inputs", instead="python benchmarks/fuzz.py --help", because="takes an hour"
    ),
    "python benchmarks/fuzz.py --words benchmarks/results/fuzz.json": Way(shows="By reader"),
    "python benchmarks/step_cost.py --seconds 60 --starts 3": Way(
        shows="--seconds", instead="python benchmarks/step_cost.py --help", because="takes minutes on a quiet machine"
    ),
    "python benchmarks/step_parts.py --seconds 60 --starts 2": Way(
        shows="--seconds", instead="python benchmarks/step_parts.py --help", because="takes minutes on a quiet machine"
    ),
    "python benchmarks/stages.py --starts 30 --turns 40": Way(
        shows="--turns", instead="python benchmarks/stages.py --help", because="takes minutes on a quiet machine"
    ),
    "python benchmarks/imports.py --ranks 8": Way(
        shows="--ranks", instead="python benchmarks/imports.py --help", because="takes minutes on a quiet machine"
    ),
    "python benchmarks/throughput.py --model gpt2-124m --sweep": Way(
        shows="--sweep", instead="python benchmarks/throughput.py --help", because="needs a GPU"
    ),
    "python benchmarks/nodes.py --nodes 8 64 512 --ranks 8": Way(
        shows="--nodes",
        instead="python benchmarks/nodes.py --help",
        because="takes minutes on a quiet machine",
    ),
    "python benchmarks/analyse.py --out results.json": Way(
        shows="--out", instead="python benchmarks/analyse.py --help", because="takes minutes and 2 GB of disk"
    ),
}

DIAGNOSING: dict[str, Way] = {
    "rankscope diagnose d1": Way(1, "rank 2 did not enter all_reduce 6"),
    "rankscope diagnose nccl.log": Way(1, "ranks 0, 1, 3 waited in ALLREDUCE 418"),
    "rankscope diagnose silent.log": Way(3, "ranks 0, 1 fall silent in the forward or backward pass 12 min ago"),
    "rankscope diagnose stacks": Way(1, "rank 1 is standing in push_metrics"),
    "rankscope diagnose $(find logs -name error.json)": Way(1, "rank 1 raised ValueError in main (rec.py:7)"),
    "rankscope diagnose nccl_trace_rank_* train.log": Way(
        1, "rank 2 did not enter all_reduce 6", instead="rankscope diagnose d1/*", because="they have other names here"
    ),
    "rankscope report runs/1115-021233-train": Way(shows="rankscope: runs/1115-021233-train/report.html"),
    "rankscope report d1 nccl.log --output incident.html": Way(shows="rankscope: incident.html"),
    "rankscope report runs/1115-021233-train --format md": Way(shows="### HANG, proven"),
    "rankscope report runs/1115-021233-train --format trace --output trace.json": Way(shows="rankscope: trace.json"),
    "kubectl logs job/train | rankscope diagnose -": Way(
        1, "ALLREDUCE 418", instead="cat nccl.log | rankscope diagnose -", because="there is no cluster here"
    ),
}

ATTACHING: dict[str, Way] = {
    "rankscope attach --pid 4121": Way(1, "push_metrics", instead="rankscope attach --pid $JOB", because="any pid"),
    "rankscope attach --watch 60 --json": Way(
        1, '"outcome": "hang"', instead="rankscope attach --watch 2 --json --pid $JOB", because="a minute is long"
    ),
    "rankscope attach": Way(
        1,
        "push_metrics",
        instead="rankscope attach --watch 1 || rankscope attach --watch 1 --pid $JOB",
        because="where other jobs run on this machine, one must be chosen",
    ),
    "for pid in $(pgrep -f train.py); do py-spy dump --pid $pid; done > stacks.txt; rankscope diagnose stacks.txt": Way(
        1,
        "push_metrics",
        instead="for pid in $JOB $PEER; do py-spy dump --pid $pid; done > stacks.txt; rankscope diagnose stacks.txt",
        because="other programs of that name may run on this machine",
    ),
}
TABLES = (TRAINING, RUNNING, DIAGNOSING, ATTACHING)


def commands_of(page: Path) -> list[str]:
    """As they are typed: without prompts and without what a comment says of them."""
    text = page.read_text()
    found = []
    for language, block in BLOCK.findall(text):
        lines = block.splitlines()
        if language == "console":
            found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif language == "bash":
            found += [line.split(" #")[0].rstrip() for line in lines if line.strip()]
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text)))
    return found + [span for span in spans if IN_A_SENTENCE.fullmatch(span)]


def test_every_block_of_a_page_says_what_it_is() -> None:
    unknown = [
        f"{page.relative_to(ROOT)}: a block with ```{language}, which begins with {block.splitlines()[:1]}"
        for page in PAGES
        for language, block in BLOCK.findall(page.read_text())
        if language not in LANGUAGES
    ]
    assert unknown == [], f"write one of {sorted(LANGUAGES)} behind the three marks"


def test_every_command_of_a_page_is_run_by_a_test_and_every_command_run_is_on_a_page() -> None:
    written = {command: page.name for page in PAGES for command in commands_of(page)}
    tested = {command for table in TABLES for command in table}
    assert {command: page for command, page in written.items() if command not in tested} == {}
    assert tested - set(written) == set()


def test_what_is_not_run_itself_has_a_reason() -> None:
    ways = [way for table in TABLES for way in table.values()]
    assert [way for way in ways if (way.instead is None) != (way.because == "")] == []


def test_the_page_on_data_names_every_preset() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    assert [name for name in preset_names() if f"`{name}`" not in page] == []


class Reader:
    """Somebody who types what the pages say, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"
        bin_folder = folder / ".venv" / "bin"
        bin_folder.mkdir(parents=True)
        for name, module in (("rankscope", "-m rankscope"), ("torchrun", "-m torch.distributed.run"), ("python", "")):
            program = bin_folder / name
            program.write_text(
                f'#!/bin/sh\necho "{name} $*" >>"{self._calls}"\nexec "{sys.executable}" {module} "$@"\n'
            )
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        for name in ("run_tests.sh", "run_training.sh", "zoo", "benchmarks", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)
        self._path = f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def types(self, command: str, way: Way, **variables: str) -> str:
        """Runs it, and gives what it said."""
        process = subprocess.Popen(
            ["bash", "-c", way.instead or command],
            cwd=self.folder,
            env={**os.environ, "PATH": self._path, "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            output, _ = process.communicate()
            raise AssertionError(f"still running after {LIMIT_S:g} s: {command}\n{output[-6000:]}") from None
        # A headline is folded to the width of the terminal.
        told = " ".join(output.split())
        assert (process.returncode, way.shows in told) == (way.code, True), f"{command}\n{output[-6000:]}"
        return output

    def ran(self) -> list[str]:
        """Every command of ours that was called, also from within another."""
        return self._calls.read_text().splitlines()


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # many jobs, one after the other
def test_commands_about_training_work_in_the_order_of_the_pages(reader: Reader) -> None:
    # The set-up has tests of its own, and this interpreter is set up.
    (reader.folder / "run_training.sh").unlink()
    (reader.folder / "run_training.sh").write_text((ROOT / "run_training.sh").read_text())
    (reader.folder / "scripts").mkdir()
    (reader.folder / "scripts" / "setup.sh").write_text("")
    (reader.folder / "my.yaml").write_text(blocks("docs/data.md", "yaml")[0])
    (reader.folder / "notes.md").write_text((ROOT / "docs" / "data.md").read_text())
    for command, way in TRAINING.items():
        if way.within is None:
            ranks = "2" if "--fault" in command or "run_training" in command else "1"  # one is enough, and sooner done
            reader.types(command, way, NUM_GPUS=ranks)
        else:
            assert command in reader.ran(), f"'{way.within}' does not run it"
        if "--replay-nan" in command:
            (snippet,) = blocks("docs/checkpoints-and-nan.md", "python")
            told = reader.types("python snippet", Way(instead=f"python - <<'END'\n{snippet}\nEND", because="a program"))
            assert "tok_embed.weight: 100.0% NaN" in told


@pytest.mark.slow
@pytest.mark.timeout(1200)  # many jobs, one after the other
def test_commands_about_running_checking_and_launching_work(reader: Reader) -> None:
    (reader.folder / "train.py").write_text(
        "import os, sys\nimport msgspec\n"
        'print(f\'rank {os.environ["RANK"]} of {os.environ["WORLD_SIZE"]}, {" ".join(sys.argv[1:])}\')\n'
    )
    (reader.folder / "my.yaml").write_text(blocks("docs/data.md", "yaml")[0])
    with ThreadPoolExecutor(2) as pool:  # most of the time goes into starting
        list(pool.map(reader.types, RUNNING.keys(), RUNNING.values()))
    for page in ("docs/stages.md", "docs/numbers.md", "docs/python.md"):
        for snippet in blocks(page, "python"):
            reader.types(f"python of {page}", Way(instead=f"python - <<'END'\n{snippet}\nEND", because="a program"))


@pytest.mark.slow
def test_commands_about_diagnosing_what_is_left_work(reader: Reader) -> None:
    (reader.folder / "d1").mkdir()
    for rank in range(4):
        calls = [flight_dumps.call(seq) for seq in range(1, 6 if rank == 2 else 7)]
        if rank != 2:
            calls[-1] = flight_dumps.call(6, done=False, line=15)
        flight_dumps.write(reader.folder / "d1", rank, *calls)
    timed_out = (
        "[rank{0}]:[E1115 02:10:03.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=418, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran\n"
    )
    alive = "[rank{0}]: 2026-11-15 02:00:02,127 INFO saving sample grid\n"
    log = [alive.format(rank) for rank in range(4)] + [timed_out.format(rank) for rank in (0, 1, 3)]
    (reader.folder / "nccl.log").write_text("".join(log))
    silent = reader.folder / "silent.log"
    silent.write_text("".join(f"[Rank {rank}] Data moved to device, starting forward pass\n" for rank in range(2)))
    os.utime(silent, (time.time() - 720,) * 2)
    (reader.folder / "stacks").mkdir()
    frames = {0: "all_reduce (torch/distributed/distributed_c10d.py:3245)", 1: "push_metrics (train.py:3)"}
    for rank, frame in frames.items():
        (reader.folder / "stacks" / f"rank{rank}.txt").write_text(
            f"Process {70 + rank}: /usr/bin/python3 -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            f'Thread {70 + rank} (idle): "MainThread"\n    {frame}\n    <module> (train.py:9)\n'
        )
    run = reader.folder / "runs" / "1115-021233-train"
    save_evidence(recorded("gloo/eval_batchnorm"), run / "evidence")
    (run / "run.json").write_text("{}")
    (reader.folder / "logs" / "attempt_0" / "1").mkdir(parents=True)
    stack = 'Traceback (most recent call last):\n  File "/home/me/rec.py", line 7, in main\n    raise ValueError\n'
    told = {"py_callstack": f"{stack}ValueError: label 17 is out of range\n", "timestamp": "1794708000"}
    error = {"message": {"message": "ValueError: label 17 is out of range", "extraInfo": told}}
    (reader.folder / "logs" / "attempt_0" / "1" / "error.json").write_text(json.dumps(error))
    for command, way in DIAGNOSING.items():
        reader.types(command, way)


HANGING = """\
    import os, socket, sys
    def push_metrics(service): service.recv(1)
    import torch, torch.distributed as dist
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if rank == 1:
        ours, theirs = socket.socketpair()
        push_metrics(ours)
    dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def hanging_ranks(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """A job that somebody else started: rank 1 waits for an answer that does not come. Gives the two pids."""
    (tmp_path / "job.py").write_text(textwrap.dedent(HANGING))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-u", "job.py", str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield {"JOB": str(ranks[1].pid), "PEER": str(ranks[0].pid)}
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.communicate()


@pytest.mark.slow
def test_commands_about_looking_at_a_job_that_hangs_work(reader: Reader, hanging_ranks: Mapping[str, str]) -> None:
    for command, way in ATTACHING.items():
        reader.types(command, way, **hanging_ranks)


def blocks(page: str, language: str) -> list[str]:
    return [block for kind, block in BLOCK.findall((ROOT / page).read_text()) if kind == language]
