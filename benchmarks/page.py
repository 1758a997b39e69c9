"""What an open live page costs a step: one job with `--page`, looked at for some seconds and then not, in turns.

    python benchmarks/page.py [--turns 20] [--seconds 3]

Both kinds of turns are of the same two processes with the same data in the same places, so that nothing but the reader
differs. It asks once a second, as the page in a browser does, from this machine: what the reader itself takes of the
cores counts too, what a browser takes to draw does not (it runs where you sit). Means of all steps of a turn are
compared, as one step in a hundred is hit by a request and a median would not see it. Prints the median over the
pairs of turns with its 95 % interval and writes it to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import step_job
import step_time

GOAL = 1.005
EVERY_S = 1.0
_EDGE_S = 0.2
"""After a change, steps that are not counted."""

_LOOP = """
import itertools

begin, last = time.time(), 0.0
batches = itertools.cycle(list(loader))
while not os.path.exists(f"{out}.stop"):
    at, start = time.time(), time.perf_counter()
    inputs = next(batches)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    steps.append((at, time.perf_counter() - start))
    enough = torch.tensor(float(os.path.exists(f"{out}.stop")))
    dist.all_reduce(enough)  # both end after the same step
    if enough.item():
        break
"""

Window = tuple[float, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--seconds", type=float, default=3.0, help="a turn (default: 3)")
    parser.add_argument("--layers", type=int, default=step_job.LAYERS, help="of the network: the length of a step")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        open_windows, closed, steps, request_ms = measure(Path(folder), chosen.turns, chosen.seconds, chosen.layers)
    ratio, step_ms = compared(open_windows, closed, steps)
    settled = f"goal {GOAL:g}: {ratio.judged(GOAL)}"
    lines = [
        f"- {step_time.RANKS} ranks (gloo), each on cores of its own; {len(closed)} pairs of turns of "
        f"{chosen.seconds:g} s, a request a second in every other; {len(steps)} steps, "
        f"{step_ms:.2f} ms each while nobody looks",
        f"- **step time ratio {ratio}** with the page open; {settled}",
        f"- processor time of the launcher for a request {request_ms:.1f} ms",
    ]
    print("\n".join(lines))
    if not chosen.no_write:
        path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-page.md"
        path.write_text("\n".join(["# Step time with the live page open", "", *step_time.facts(), *lines]) + "\n")
        print(f"written: {path.name}")
    return 0


def measure(
    folder: Path, turns: int, seconds: float, layers: int
) -> tuple[list[Window], list[Window], list[tuple[float, float]], float]:
    """When the page was open and when not, rank 0's steps (time of day, seconds), and the launcher's milliseconds of
    processor time for a request."""
    script = folder / "train.py"
    script.write_text(step_job.text(_LOOP))
    run, out = folder / "run", folder / "steps.json"
    command = [sys.executable, "-m", "rankscope", "run", "--page", "--run-dir", str(run)]
    command += ["--nproc-per-node", str(step_time.RANKS), str(script), str(out), str(layers)]
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, env=step_job.environment())
    try:
        address = _await_steps(folder, job, run)
        windows: tuple[list[Window], list[Window]] = ([], [])
        used, requests = [0.0, 0.0], 0
        for turn in range(2 * turns):
            looked = turn % 2 == (turn // 2) % 2  # open closed, closed open, ...
            begin, before = time.time(), _launcher_s(job.pid)
            for second in range(max(1, round(seconds / EVERY_S))):
                if looked:
                    _look(address)
                    requests += 1
                time.sleep(max(0.0, begin + (second + 1) * EVERY_S - time.time()))
            windows[0 if looked else 1].append((begin + _EDGE_S * (not looked), time.time()))
            used[0 if looked else 1] += _launcher_s(job.pid) - before
        Path(f"{out}.stop").touch()
        job.wait(60)
        steps: list[tuple[float, float]] = [(at, took) for at, took in json.loads(out.read_text())]
        return windows[0], windows[1], steps, 1e3 * (used[0] - used[1]) / requests
    finally:
        if job.poll() is None:
            step_time.send(step_time.processes_below(job.pid), signal.SIGKILL)
            job.wait()


def _look(address: str) -> None:
    """As cheap as a reader can be: it stands for a browser on another machine."""
    host, _, rest = address.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET /{path}board HTTP/1.1\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer[:200]


def compared(
    looked: Sequence[Window], not_looked: Sequence[Window], steps: Sequence[tuple[float, float]]
) -> tuple[step_time.Ratio, float]:
    """Mean step of neighbouring turns, the first over the second; and the milliseconds of the latter."""

    def mean(window: Window) -> float:
        return statistics.mean(took for at, took in steps if window[0] <= at < window[1] - took)

    pairs = [(mean(one), mean(two)) for one, two in zip(looked, not_looked, strict=True)]
    ratios = [one / two for one, two in pairs]
    low, high = step_time.interval([[each] for each in ratios])
    return step_time.Ratio(statistics.median(ratios), low, high), 1e3 * statistics.median(two for _, two in pairs)


def _await_steps(folder: Path, job: subprocess.Popen[bytes], run: Path) -> str:
    """The page's address, once the job makes steps."""
    deadline = time.monotonic() + step_time.START_LIMIT_S
    while time.monotonic() < deadline and job.poll() is None:
        time.sleep(0.5)
        if not (run / "page.url").exists():
            continue
        address = (run / "page.url").read_text().strip()
        numbers = urllib.request.urlopen(f"{address}metrics", timeout=10).read().decode()
        made = next(line for line in numbers.splitlines() if line.startswith("rankscope_steps_total "))
        if float(made.split()[1]) >= 2 * step_job.BATCHES:
            return address
    raise SystemExit(f"the job made no steps:\n{(folder / 'log').read_text(errors='replace')}")


def _launcher_s(guard: int) -> float:
    """Processor time of the launcher's own processes so far: all that are below the guard and no rank."""
    found = 0.0
    for pid in step_time.processes_below(guard)[:3]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


if __name__ == "__main__":
    sys.exit(main())
