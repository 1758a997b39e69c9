"""Kills, stops, continues and interrupts the processes of real jobs at random moments, and looks at what is left.

    python benchmarks/chaos.py --rounds 20 --seed 1

Each round starts a small job of two ranks with loader workers, picks a victim and a blow, waits a random moment,
strikes and lets the job end by itself. Then it looks for what must never be: a process that is left, a file outside
of the run's folder, a folder in shared memory, evidence or a verdict that cannot be read, an exit code that disagrees
with the verdict, a rank that is blamed and was not struck, a command that does not end within ten seconds of its job,
a traceback of ours. The same seed gives the same rounds; the moment within a round is as exact as the machine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

MARK = "RANKSCOPE_CHAOS_MARK"
STEPS = 60
PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, at): return torch.ones(8)

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = iter(DataLoader(Rows(), batch_size=4, num_workers=1))
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(next(loader)).sum().backward()
        optimizer.step()
        print("step", step, flush=True)
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
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
LIMIT_S = 90.0
END_S = 10.0
_OF_TORCH = ("pymp-", "torchinductor_")
"""Folders that the program itself leaves there."""


@dataclass(slots=True)
class Round:
    number: int
    victim: str
    blow: str
    after_s: float
    code: int | None = None
    outcome: str = "-"
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def main() -> int:
    """The number of rounds in which something was wrong is told by the exit code: 0 for none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this round alone, as numbered in the table")
    chosen = parser.parse_args()
    print("| round | victim | blow | after | code | verdict | took | faults |")
    print("| ---: | --- | --- | ---: | ---: | --- | ---: | --- |")
    bad = 0
    for number in range(chosen.rounds):
        if chosen.only is not None and number != chosen.only:
            continue
        done = play(number, random.Random(f"{chosen.seed}/{number}"))
        bad += bool(done.faults)
        print(
            f"| {done.number:>5} | {done.victim:<13} | {done.blow:<17} | {done.after_s:5.2f}s | {done.code!s:>4} "
            f"| {done.outcome:<12} | {done.seconds:5.1f}s | {'; '.join(done.faults) or 'none'} |",
            flush=True,
        )
    return min(bad, 100)


def play(number: int, chance: random.Random) -> Round:
    """One job, one blow."""
    it = Round(number, chance.choice(VICTIMS), chance.choice(list(BLOWS)), chance.uniform(0.0, 6.0))
    folder = Path(tempfile.mkdtemp(prefix="rankscope-chaos-"))
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    run, mark = folder / "run", uuid.uuid4().hex
    before = shared_folders()
    env = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", "2", "--run-dir", str(run)]
    try:
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*command, str(folder / "train.py"), str(STEPS)],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            begun = time.monotonic()
            time.sleep(it.after_s)
            struck = strike(it, process.pid, mark, run)
            wait(it, process, mark)
            it.seconds = time.monotonic() - begun
        if struck is None and not it.faults:
            it.blow = "(not there yet)"
        look(it, folder, run, mark, struck)
        it.faults += [f"left in memory: {path}" for path in shared_folders() - before if unheld(path)]
    finally:
        for pid in marked(mark):
            send(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return it


def strike(it: Round, guard: int, mark: str, run: Path) -> int | None:
    """The process that was hit; None where there was no such one yet."""
    pid = find(it.victim, guard, mark, run)
    if pid is None:
        return None
    for word in BLOWS[it.blow]:
        if isinstance(word, float):
            time.sleep(word)
        else:
            send(pid, word)
    return pid


def find(victim: str, guard: int, mark: str, run: Path) -> int | None:
    if victim == "guard":
        return guard
    tree = {pid: parent for pid in marked(mark) if (parent := parent_of(pid)) is not None}
    wardens = [pid for pid, parent in tree.items() if parent == guard]
    if victim == "warden":
        return wardens[0] if wardens else None
    launchers = [pid for pid, parent in tree.items() if parent in wardens]
    if victim == "launcher":
        return launchers[0] if launchers else None
    try:
        ranks = {int(rank): pid for rank, pid in json.loads((run / "ranks.json").read_bytes()).items()}
    except (OSError, ValueError):
        return None
    if victim.startswith("rank"):
        return ranks.get(int(victim[-1]))
    workers = [pid for pid, parent in tree.items() if parent in ranks.values()]
    return workers[0] if workers else None


def wait(it: Round, process: subprocess.Popen[bytes], mark: str) -> None:
    """Until the command ends: at most so long after the last rank has."""
    deadline = time.monotonic() + LIMIT_S
    alone_since: float | None = None
    while process.poll() is None:
        now = time.monotonic()
        if ranks_alive(mark) or now < deadline - LIMIT_S + END_S:  # at first there are none yet
            alone_since = None
        elif alone_since is None:
            alone_since = now
        if alone_since is not None and now - alone_since > END_S:
            it.faults.append(f"no end within {END_S:.0f} s of its job")
            break
        if now > deadline:
            it.faults.append(f"no end within {LIMIT_S:.0f} s")
            break
        time.sleep(0.05)
    code = process.poll()
    it.code = None if code is None else code if code >= 0 else 128 - code


def ranks_alive(mark: str) -> bool:
    lines = [read(pid, "cmdline") for pid in marked(mark)]
    return any(b"train.py" in line and b"-m\0rankscope" not in line for line in lines)


def look(it: Round, folder: Path, run: Path, mark: str, struck: int | None) -> None:
    """Everything that must not be."""
    deadline = time.monotonic() + 6.0
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    it.faults += [
        f"left: {read(pid, 'cmdline').replace(bytes(1), b' ')[:60].decode(errors='replace')}" for pid in marked(mark)
    ]
    it.faults += [f"left in TMPDIR: {name}" for name in os.listdir(folder / "tmp") if not name.startswith(_OF_TORCH)]
    said = (folder / "err").read_text(errors="replace")
    ours = [line for line in said.splitlines() if not line.startswith(("R0:", "R1:"))]
    if any(line.startswith("Traceback") for line in ours):
        it.faults.append("a traceback of ours")
    for path in run.rglob("*.json") if run.exists() else ():
        if path.name == "error.json":
            continue
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError):
            it.faults.append(f"broken: {path.relative_to(run)}")
    judge(it, run, struck)


def judge(it: Round, run: Path, struck: int | None) -> None:
    try:
        verdict = json.loads((run / "verdict.json").read_bytes())
    except (OSError, ValueError):
        verdict = None
    if verdict is None:
        if it.code == 0:
            it.faults.append("exit code 0 and no verdict")
        return
    it.outcome = verdict["outcome"]
    if (
        it.victim != "guard"
        and it.code is not None
        and (it.code == 0) != (it.outcome == "ok")
        and it.victim != "launcher"
    ):
        it.faults.append(f"code {it.code} and {it.outcome}")
    harmless = it.blow == "stop and continue" or struck is None
    if it.victim in ("guard", "launcher") and not harmless and it.code == 0:
        it.faults.append("the signal was lost")
    if harmless and it.outcome not in ("ok", "slow"):
        it.faults.append(f"{it.outcome} of a job that only paused")
    blamed = {culprit["rank"] for culprit in verdict["culprits"] if culprit["rank"] is not None}
    if it.victim.startswith("rank") and it.outcome in ("crash", "hang") and blamed - {int(it.victim[-1])}:
        it.faults.append(f"blames {sorted(blamed)}")


def marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if wanted in read(pid, "environ").split(b"\0") and state_of(pid) not in ("Z", "X", "")]


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int | None:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def state_of(pid: int) -> str:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def shared_folders() -> set[str]:
    return {str(path) for path in Path("/dev/shm").glob(f"rankscope-{os.getuid()}-pages-*")}


def unheld(path: str) -> bool:
    """Whoever uses such a folder holds a lock on it: another job on this machine, perhaps."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False  # removed meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it was faster


if __name__ == "__main__":
    sys.exit(main())
