"""All on against all off, for throughput.py --overhead: two jobs that take turns on one device."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import step_time
from rankscope.train.place import Place
from throughput_bench import readied
from throughput_variants import MODELS

SCRIPT = Path(__file__).resolve().with_name("throughput.py")
PACED_CHECKPOINT_EVERY = 100
TURN_SETTLES_S = 0.5


def overhead(name: str, changes: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All on (probe, lines, metrics, finite checks, checkpoints) against all off: both run, and take turns.

    All processes of one are stopped while the other has the GPU; the turns go ABBA, so that what drifts, drifts for
    both. The first part of a turn, in which work that the other had begun is finished, does not count.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        needed = {
            # Both jobs would try kernels at the same time, and might not choose the same.
            "model.products": "torch",
            # Both must fit on the GPU.
            "training.batch_size": str(max(1, MODELS[name].training.batch_size // 2)),
        }
        same = [changes] if changes else []
        same += [f"{key}={value}" for key, value in needed.items() if key not in changes]
        script = [str(SCRIPT), "--model", name, "--try", ",".join(same), "--quiet"]
        rankscope = [
            sys.executable,
            "-m",
            "rankscope",
            "run",
            "--nproc-per-node",
            "1",
            "--run-dir",
            str(folder / "run"),
        ]
        launchers = {"off": [sys.executable], "on": rankscope}
        jobs: dict[str, subprocess.Popen[bytes]] = {}
        turns: dict[str, list[tuple[float, float]]] = {state: [] for state in launchers}
        try:
            for state, launcher in launchers.items():
                command = [*launcher, *script, "--instruments", state, "--paced", str(folder / state)]
                with (folder / f"{state}.log").open("wb") as log:
                    jobs[state] = subprocess.Popen(command, stdout=log, stderr=log)
            while not all((folder / f"{state}.ready").exists() for state in jobs):
                gone = [state for state, job in jobs.items() if job.poll() is not None]
                if gone:
                    text = (folder / f"{gone[0]}.log").read_text(errors="replace").strip().splitlines()
                    return {"model": name, "changes": changes, "failed": f"{gone[0]}: {text[-1] if text else ''}"}
                time.sleep(0.1)
            trees = {state: step_time.processes_below(job.pid) for state, job in jobs.items()}
            for number in range(2 * arguments.turns):
                state, other = ("off", "on") if number % 4 in (0, 3) else ("on", "off")
                step_time.send(trees[other], signal.SIGSTOP)
                step_time.send(trees[state], signal.SIGCONT)
                begin = time.perf_counter()
                time.sleep(arguments.turn_s)
                turns[state].append((begin + TURN_SETTLES_S, time.perf_counter()))
            for state, tree in trees.items():
                step_time.send(tree, signal.SIGCONT)
                (folder / f"{state}.stop").touch()
            for job in jobs.values():
                job.wait(120)
            times = {state: json.loads((folder / f"{state}.times").read_text()) for state in jobs}
        finally:
            for job in jobs.values():
                if job.poll() is None:
                    tree = step_time.processes_below(job.pid)
                    step_time.send(tree, signal.SIGKILL)
                    step_time.send(tree, signal.SIGCONT)
    found = {state: [mean_step(times[state], turn) for turn in turns[state]] for state in turns}
    ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
    low, high = step_time.interval([[ratio] for ratio in ratios])
    return {
        "model": name,
        "changes": changes,
        "overhead_ratio": statistics.median(ratios),
        "interval": [low, high],
        "ratio_of_means": statistics.mean(found["on"]) / statistics.mean(found["off"]),
        "ratios": ratios,
        **found,
    }


def mean_step(times: Sequence[float], turn: tuple[float, float]) -> float:
    """Mean length of the steps that ended in the turn; a checkpoint begun in it counts in full."""
    inside = [each for each in times if turn[0] <= each <= turn[1]]
    if len(inside) < 3:
        raise SystemExit(f"a turn held {len(inside)} steps: choose a longer --turn-s or a smaller step")
    return (inside[-1] - inside[0]) / (len(inside) - 1)


def keep_stepping(name: str, changes: str, place: Place, files: Path, *, instruments: bool) -> None:
    """Makes steps until FILES.stop exists; then the time at which each began to be followed is in FILES.times."""
    with readied(name, changes, place, instruments=instruments) as (bench, _):
        files.with_suffix(".ready").touch()
        times: list[float] = []
        while not files.with_suffix(".stop").exists():
            bench.step(checkpoint_every=PACED_CHECKPOINT_EVERY)
            times.append(time.perf_counter())
    files.with_suffix(".times").write_text(json.dumps(times))
