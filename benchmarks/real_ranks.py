"""As many real ranks as one machine bears, one of which skips a collective: what the launcher needs to say which.

    python benchmarks/real_ranks.py [--ranks 64]

The ranks train with DDP over gloo on the CPU; one of them leaves out the all-reduce of a loss. Prints when the
first step was made, how long after what it tells of the verdict was there, what the launcher took of memory and
processor time, and writes it to benchmarks/results/. Ends with an error where the verdict names another rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
STEP = 6
PROGRAM = """
import sys, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
odd, at = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 16)).sum()
    loss.backward()
    optimizer.step()
    if not (dist.get_rank() == odd and step == at):
        dist.all_reduce(loss.detach())
    print("step", step, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--limit", type=float, default=420.0, help="seconds after which it is given up")
    parser.add_argument("--no-result", action="store_true", help="print only, write no file")
    chosen = parser.parse_args()
    odd = chosen.ranks * 5 // 8
    with tempfile.TemporaryDirectory(prefix="rankscope-ranks-") as name:
        text = measure(chosen.ranks, odd, chosen.limit, Path(name))
    print(text)
    if not chosen.no_result:
        (RESULTS / f"{time.strftime('%Y-%m-%d')}-real-ranks.md").write_text(text)


def measure(ranks: int, odd: int, limit: float, folder: Path) -> str:
    (folder / "train.py").write_text(PROGRAM)
    run, out = folder / "run", folder / "out"
    command = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", str(ranks), "--run-dir", str(run)]
    command += [str(folder / "train.py"), str(odd), str(STEP)]
    begun = time.monotonic()
    with out.open("wb") as file:
        job = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    stepped_s: float | None = None
    largest, worked = 0, 0.0
    while job.poll() is None and time.monotonic() - begun < limit:
        time.sleep(0.2)
        launcher = largest_of(job.pid)
        largest, worked = max(largest, launcher[0]), max(worked, launcher[1])
        if stepped_s is None and b"step 0" in out.read_bytes():
            stepped_s = time.monotonic() - begun
    if job.poll() is None:
        job.terminate()
        job.wait(30)
    took = time.monotonic() - begun
    found = next(iter(run.rglob("verdict.json")), None)
    verdict: dict[str, Any] = {"headline": "none", "culprits": []}
    if found is not None:
        verdict = json.loads(found.read_bytes())
    blamed = [culprit["rank"] for culprit in verdict["culprits"]]
    if blamed != [odd]:
        raise SystemExit(
            f"rank {odd} had skipped a call; the verdict: {verdict['headline']}\n{out.read_text()[-2000:]}"
        )
    size = sum(path.stat().st_size for path in run.rglob("evidence.json"))
    started = "not seen" if stepped_s is None else f"{stepped_s:.0f} s"
    return (
        f"# {ranks} real ranks on one machine\n\n"
        f"{time.strftime('%Y-%m-%d')}, rankscope {metadata.version('rankscope')}, torch {metadata.version('torch')}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.0f} at the end. `python benchmarks/real_ranks.py --ranks {ranks}`\n\n"
        f"DDP over gloo; rank {odd} leaves out one all-reduce in step {STEP}.\n\n"
        f"| | |\n| --- | ---: |\n"
        f"| first step, after the start | {started} |\n"
        f"| `detected_after_s` of the verdict | {verdict['detected_after_s'] or 0:.1f} s |\n"
        f"| whole command | {took:.0f} s |\n"
        f"| the launcher's memory, peak | {largest / 1e6:.0f} MB |\n"
        f"| its processor time | {worked:.0f} s |\n"
        f"| evidence.json | {size / 1e6:.1f} MB |\n\n"
        f"Verdict ({verdict['certainty']}): {verdict['headline']}\n"
    )


def largest_of(guard: int) -> tuple[int, float]:
    """Peak memory and processor time of the largest process between the command and its ranks: the launcher."""
    found = (0, 0.0)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            status = Path(f"/proc/{name}/status").read_text()
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if b"-m\0rankscope" not in Path(f"/proc/{name}/cmdline").read_bytes() or not below(int(name), guard):
                continue
        except OSError:
            continue  # ended meanwhile
        peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
        found = max(found, (peak, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
    return found


def below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor


if __name__ == "__main__":
    main()
