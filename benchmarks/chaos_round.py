"""One round: a job, a blow, and a look at everything that must not be."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_processes import (
    MARK,
    about,
    find,
    left_in_memory,
    marked,
    parent_of,
    ranks_alive,
    ranks_in,
    read,
    send,
    shared_folders,
)
from chaos_programs import PROGRAMS, SHARES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from namespaces import Host, hosts

STEPS = 40
BLOWS: dict[str, list[float | signal.Signals]] = {
    "kill": [signal.SIGKILL],
    "segfault": [signal.SIGSEGV],
    "terminate": [signal.SIGTERM],
    "interrupt": [signal.SIGINT],
    "interrupt twice": [signal.SIGINT, 0.6, signal.SIGINT],
    "stop and continue": [signal.SIGSTOP, 1.5, signal.SIGCONT],
    "stop, then kill": [signal.SIGSTOP, 1.0, signal.SIGKILL],
}
VICTIMS = ("rank 0", "rank 1", "loader worker", "launcher", "guard", "warden")
DISK, NETWORK = "disk", "network"
LIMIT_S = 120.0
END_S = 10.0
START_S = 60.0
"""What the ranks may take to start, on a busy machine."""
PHASES = ("start", "ranks", "steps", "steps")
"""The moment is counted from the start of the command, of the ranks, or of the first step."""
LATEST_S = {"start": 5.0, "ranks": 3.0, "steps": 2.2}
"""After that most jobs have ended, or come to the next phase."""
_OF_TORCH = ("pymp-", "torchinductor_", "tmp")
"""What the program itself leaves there: a loader that loses its worker opens files to see whether it still can."""
_OF_TORCH_AT_HOME = (".nv", ".triton", ".cache")
_BEFORE_US = "Fatal Python error: init_import_site"
"""The interpreter itself was interrupted, before any line of ours."""
_FROM_OUTSIDE = ("guard", "launcher", "warden")


@dataclass(slots=True)
class Round:
    number: int
    nodes: int
    victim: str
    blow: str
    after_s: float = 0.0
    """After the beginning of the phase."""
    program: str = "ddp"
    phase: str = "start"
    node: int = 0
    """The one that is struck."""
    hit: bool = False
    done: bool = False
    """The job had made its last step before the blow: the command may end well, whatever strikes it."""
    kept_room: bool = False
    """When the disk filled up the run had its folder, and room for the verdict in it."""
    blameable: list[int] | None = None
    """The ranks that may be blamed; None for any."""
    codes: list[int | None] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended_after_s: float | None = None
    """After the last rank."""
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """One launcher of the job."""

    process: subprocess.Popen[bytes]
    run: Path
    mark: str
    ranks: list[int]


def play(number: int, chance: random.Random, keep: Path | None, *, namespaces: bool) -> Round:
    """One job, one blow."""
    nodes = 2 if number % 4 == 3 else 1
    it = Round(number, nodes, chance.choice(VICTIMS), chance.choice(list(BLOWS)))
    it.program = chance.choices(list(SHARES), list(SHARES.values()))[0]
    it.phase = chance.choice(PHASES)
    it.node = chance.randrange(nodes)
    special = chance.random()
    if special < 0.08:
        it.victim, it.blow = DISK, "full"
    elif special < 0.3 and nodes == 2 and namespaces:
        it.victim, it.blow, it.phase = NETWORK, "cut off", "steps"  # before that nodes wait as told
    it.after_s = round(chance.uniform(0.0, LATEST_S[it.phase]), 2)
    folder = Path(tempfile.mkdtemp(prefix="rankscope-chaos-"))
    mark, before = uuid.uuid4().hex, shared_folders()
    try:
        with contextlib.ExitStack() as stack:
            disk = stack.enter_context(small_disk(folder)) if it.victim == DISK else None
            machines = stack.enter_context(hosts(2)) if nodes == 2 and namespaces else None
            job = start(it, folder, mark, machines, disk or folder)
            begun = time.monotonic()
            await_phase(it, job, folder)
            time.sleep(it.after_s)
            strike(it, job, folder, machines, disk)
            wait(it, job)
            it.seconds = round(time.monotonic() - begun, 1)
            look(it, folder, job, before)
            if it.faults and keep is not None:
                kept = keep / f"round-{number}-{mark[:6]}"
                shutil.copytree(
                    folder, kept, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("filler", "tmp")
                )
    finally:
        for pid in {*(pid for node in range(nodes) for pid in marked(f"{mark}-{node}")), *about(folder)}:
            send(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return it


def start(it: Round, folder: Path, mark: str, machines: list[Host] | None, place: Path) -> list[Node]:
    (folder / "train.py").write_text(PROGRAMS[it.program])
    nodes = it.nodes
    for name in ("tmp", "home"):
        (folder / name).mkdir()
    port, between_ranks, job = free_port(), free_port(), []
    for node in range(nodes):
        run = place / f"run-{node}"
        own = f"{mark}-{node}"
        env = {**os.environ, MARK: own, "TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home")}
        if "PYTHONPATH" in env:  # the job has another working directory
            env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, env["PYTHONPATH"].split(os.pathsep))))
        env |= {"GLOO_SOCKET_IFNAME": "eth0" if machines else "lo", "PYTHONUNBUFFERED": "1", "RANKSCOPE_KEY": mark * 2}
        env["OMP_NUM_THREADS"] = "1"
        env |= {"CHAOS_ADDRESS": machines[0].address if machines else "127.0.0.1", "CHAOS_PORT": str(between_ranks)}
        words = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", str(2 // nodes), "--run-dir", str(run)]
        words += ["--master-port", str(port)]  # not all versions of torch choose one by themselves
        if nodes == 2:
            address = machines[0].address if machines else "127.0.0.1"
            words += ["--nnodes", "2", "--node-rank", str(node), "--master-addr", address]
        words += [str(folder / "train.py"), str(STEPS)]
        command = machines[node].command(*words) if machines else words
        with (folder / f"out-{node}").open("wb") as out, (folder / f"err-{node}").open("wb") as err:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        job.append(Node(process, run, own, [0, 1] if nodes == 1 else [node]))
    return job


def await_phase(it: Round, job: list[Node], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while it.phase != "start" and time.monotonic() < deadline and job[it.node].process.poll() is None:
        if it.phase == "ranks" and ranks_in(job[it.node].run):
            return
        if it.phase == "steps" and b"step 0" in (folder / f"out-{it.node}").read_bytes():
            return
        time.sleep(0.05)


_ports = iter(range(20000 + os.getpid() % 100 * 100, 32000))
_next_port = threading.Lock()


def free_port() -> int:
    """One that no other round gets, and none of those that the system gives away by itself."""
    with _next_port:
        for port in _ports:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise OSError("no port is free")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Of four megabytes; None where this user may mount nothing."""
    disk = folder / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, check=False)
    if made.returncode != 0:
        disk.rmdir()
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=False, capture_output=True)


def strike(it: Round, job: list[Node], folder: Path, machines: list[Host] | None, disk: Path | None) -> None:
    struck = job[it.node]
    if it.victim == NETWORK:
        assert machines is not None
        it.hit = any(node.process.poll() is None for node in job)
        machines[it.node].pull_the_cable()
        it.blameable = struck.ranks
        await_words_of_the_cut(job)
        return
    if it.victim == DISK:
        if disk is not None:
            it.kept_room = any(struck.run.rglob(".reserve"))
            fill(disk)
            it.hit, it.blameable = True, []
        return
    victim = it.victim
    if victim.startswith("rank"):
        victim = f"rank {struck.ranks[int(victim[-1]) % len(struck.ranks)]}"
    pid = find(victim, struck.process.pid, struck.mark, struck.run)
    if pid is None:
        return
    ranks = ranks_in(struck.run)
    it.done = f"step {STEPS - 1}\n".encode() in (folder / f"out-{it.node}").read_bytes()
    owners = {"rank": lambda: [int(victim[-1])], "loader": lambda: [r for r, p in ranks.items() if p == parent_of(pid)]}
    it.blameable = owners.get(it.victim.split()[0], lambda: struck.ranks if len(job) == 2 else [])()
    it.hit = True
    for word in BLOWS[it.blow]:
        if isinstance(word, float):
            time.sleep(word)
        else:
            send(pid, word)


def await_words_of_the_cut(job: list[Node]) -> None:
    """Nothing proves that a node is gone for ever, so that nothing is stopped: the user does, having read of it."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if all(node.process.poll() is not None or any(node.run.rglob("verdict.json")) for node in job):
            break
        time.sleep(0.2)
    for node in job:
        if node.process.poll() is None:
            send(node.process.pid, signal.SIGTERM)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def wait(it: Round, job: list[Node]) -> None:
    """Until the commands end: at most so long after the last rank has. What this loop itself lost does not count."""
    begun = last = time.monotonic()
    alone, seen, told = 0.0, any(ranks_in(node.run) for node in job), False
    while any(node.process.poll() is None for node in job):
        time.sleep(0.1)
        now = time.monotonic()
        alive = any(ranks_alive(node.mark) for node in job)
        seen |= alive
        alone = 0.0 if alive else alone + min(now - last, 0.3)
        last = now
        if not seen and not told and alone > END_S and any(node.process.poll() is not None for node in job):
            # A node whose partner was struck before they met waits for another one, as told: the user ends it.
            told, alone = True, 0.0
            for node in job:
                if node.process.poll() is None:
                    send(node.process.pid, signal.SIGTERM)
        if alone > (END_S if seen or told else START_S):
            it.faults.append(f"no end within {END_S:.0f} s of its job")
            break
        if now - begun > LIMIT_S:
            it.faults.append(f"no end within {LIMIT_S:.0f} s")
            break
    else:
        it.ended_after_s = round(alone, 1) if seen else None
    for node in job:
        code = node.process.poll()
        it.codes.append(None if code is None else code if code >= 0 else 128 - code)


def look(it: Round, folder: Path, job: list[Node], before: set[str]) -> None:
    """Everything that must not be."""
    deadline = time.monotonic() + 6.0
    while any(marked(node.mark) for node in job) and time.monotonic() < deadline:
        time.sleep(0.1)
    it.faults += [f"left in memory: {path}" for path in left_in_memory(before, [node.mark for node in job])]
    for pid in {*(pid for node in job for pid in marked(node.mark)), *about(folder)}:
        it.faults.append(f"left: {read(pid, 'cmdline').replace(bytes(1), b' ')[-70:].decode(errors='replace')}")
    it.faults += [f"left in TMPDIR: {name}" for name in os.listdir(folder / "tmp") if not name.startswith(_OF_TORCH)]
    known = {"train.py", "tmp", "home", "disk"} | {f"{name}-{n}" for name in ("out", "err", "run") for n in range(2)}
    it.faults += [f"left beside the run: {name}" for name in os.listdir(folder) if name not in known]
    it.faults += [f"left at home: {path.name}" for path in files_at_home(folder / "home")]
    for number, node in enumerate(job):
        said = (folder / f"err-{number}").read_text(errors="replace")
        ours = [line for line in said.splitlines() if not line.startswith(("R0:", "R1:"))]
        if any(line.startswith("Traceback") for line in ours) and not any(_BEFORE_US in line for line in ours):
            it.faults.append("a traceback of ours")
        for path in node.run.rglob("*.json") if node.run.exists() else ():
            if path.name != "error.json" and loaded(path) is None:
                it.faults.append(f"broken: {path.name}")
        judge(it, number, node)


def files_at_home(home: Path) -> list[Path]:
    files = [path for path in home.rglob("*") if not path.is_dir()]
    return [path for path in files if path.relative_to(home).parts[0] not in _OF_TORCH_AT_HOME]


def loaded(path: Path) -> Any | None:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def judge(it: Round, number: int, node: Node) -> None:
    """The verdict of one node, against its exit code and against what was done."""
    code = it.codes[number]
    found = sorted(node.run.rglob("verdict.json")) if node.run.exists() else []
    verdicts = [verdict for path in found if (verdict := loaded(path)) is not None]
    struck_itself = it.hit and number == it.node and it.victim in _FROM_OUTSIDE
    if not verdicts:
        it.outcomes.append("-")
        if code == 0:
            it.faults.append("exit code 0 and no verdict")
        if not it.hit and not it.faults:
            it.faults.append("no verdict of a job that nobody struck")
        if it.kept_room:
            it.faults.append("no verdict though room was kept for it")
        return
    outcome = verdicts[0]["outcome"]
    it.outcomes.append(outcome)
    if code is not None and (code == 0) != (outcome in ("ok", "slow")) and not struck_itself:
        it.faults.append(f"code {code} and {outcome}")
    harmless = it.blow == "stop and continue" or not it.hit or it.victim == DISK
    if struck_itself and it.victim != "warden" and not harmless and not it.done and code == 0:
        it.faults.append("the signal was lost")
    if harmless and outcome not in ("ok", "slow"):
        it.faults.append(f"{outcome} of a job that only paused")
    for verdict in verdicts:
        judge_blame(it, verdict)


def judge_blame(it: Round, verdict: dict[str, Any]) -> None:
    """Nobody but those who were struck. Of a slow job whoever was slow may be named: a busy machine slows anyone."""
    blamed = {culprit["rank"] for culprit in verdict["culprits"] if culprit["rank"] is not None}
    allowed = it.blameable if it.hit else []
    if verdict["outcome"] != "slow" and allowed is not None and blamed - set(allowed):
        it.faults.append(f"blames {sorted(blamed)}")
