"""Installs the package into fresh environments beside torch, and tries it there: the table of docs/install.md.

python scripts/matrix.py PYTHON...                 interpreters of environments that hold torch
python scripts/matrix.py PYTHON... --write FILE    rows go into the table of a page, in place of older ones
python scripts/matrix.py PYTHON... --no-network    dependencies too come from the environment that holds torch

For each a new virtual environment is made, which sees torch's and nothing else. The package is built from its sdist,
once with the compiler and once without one. Then jobs of two ranks are run there, and the table says what came of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "built",
    "healthy job",
    "deadlock under DDP",
    "the same, pure Python and no py-spy",
    "deadlock of plain calls",
)
HEAD = f"| {' | '.join(('Python', 'torch', *COLUMNS))} |"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->"
LIMIT_S = 240.0
JOB_S = 75.0
"""A job that has no verdict by then gets none."""

HEALTHY = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
DEADLOCK = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(16), src=0)
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()

main()
"""
PLAIN = """\
import torch, torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(16), src=0)
    dist.barrier()

main()
"""
JOBS = {"healthy.py": HEALTHY, "deadlock.py": DEADLOCK, "plain.py": PLAIN}


@dataclass(frozen=True, slots=True)
class Row:
    python: str
    torch: str
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return f"| {' | '.join((self.python, self.torch, *self.cells))} |"


class Environment:
    """A fresh one, beside the torch of another."""

    def __init__(self, folder: Path, beside: str) -> None:
        told = _ask(beside, "import sys, sysconfig; print(sys._base_executable, sysconfig.get_path('purelib'))")
        base, packages = told.split()
        self.folder = folder
        subprocess.run([base, "-m", "venv", str(folder / "env")], check=True, timeout=LIMIT_S)
        self.python = str(folder / "env" / "bin" / "python")
        own = Path(_ask(self.python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        (own / "torch-of-another.pth").write_text(packages + "\n")

    def install(self, source: Path, *options: str, compiler: bool) -> str:
        """Installs it in place of what is there; says whether the shortcuts were compiled."""
        environment = {**os.environ, **({} if compiler else {"CC": str(self.folder / "no-compiler")})}
        command = [self.python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-cache-dir", *options]
        done = subprocess.run(
            [*command, str(source)], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode != 0:
            return "FAILED: " + done.stderr.strip().splitlines()[-1]
        return _ask(
            self.python, "from rankscope.probe.shortcuts import quick; print('compiled' if quick else 'pure Python')"
        )

    def run(self, *arguments: str, hide: Sequence[str] = ()) -> tuple[int, str]:
        """`rankscope ARGUMENTS`, with programs of these names out of reach."""
        away = [self.folder / "env" / "bin" / name for name in hide]
        for program in away:
            program.rename(program.with_suffix(".away"))
        path = os.pathsep.join(
            place
            for place in [str(self.folder / "env" / "bin"), *os.environ["PATH"].split(os.pathsep)]
            if not any(Path(place, name).exists() for name in hide)
        )
        job = subprocess.Popen(
            [self.python, "-m", "rankscope", *arguments],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = job.communicate(timeout=JOB_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            said, _ = job.communicate(timeout=JOB_S)
        finally:
            for program in away:
                program.with_suffix(".away").rename(program)
        return job.returncode, " ".join(said.split())


def _ask(python: str, code: str) -> str:
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout.strip()


def build_sdist(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def try_beside(beside: str, sdist: Path, folder: Path, *, network: bool) -> Row:
    environment = Environment(folder, beside)
    for name, program in JOBS.items():
        (folder / name).write_text(program)
    options = () if network else ("--no-deps", "--no-build-isolation")
    pure = environment.install(sdist, *options, compiler=False)
    alone = _verdict(environment, "deadlock.py", hide=("py-spy",))
    compiled = environment.install(sdist, *options, compiler=True)
    verbs = environment.run("--help")[1]
    return Row(
        python=_ask(environment.python, "import platform; print(platform.python_version())"),
        torch=_ask(environment.python, "import torch; print(torch.__version__)"),
        cells=(
            f"{compiled}; {pure}" if "rankscope train" in verbs else f"FAILED: no verb train: {verbs}",
            _verdict(environment, "healthy.py"),
            _verdict(environment, "deadlock.py"),
            alone,
            _verdict(environment, "plain.py"),
        ),
    )


def _verdict(environment: Environment, program: str, hide: Sequence[str] = ()) -> str:
    """Outcome, certainty, cause and line of the job, as verdict.json has them."""
    run = environment.folder / f"run-{program}-{len(hide)}"
    code, said = environment.run(
        *("run", "--nproc-per-node", "2", "--on-hang", "stop", "--stall-after", "15", "--run-dir", str(run), program),
        hide=hide,
    )
    if not (run / "verdict.json").exists():
        return f"FAILED with {code}: {said[-200:]}"
    verdict = json.loads((run / "verdict.json").read_text())
    if hide and "py-spy is not installed" not in said:
        return "FAILED: says nothing of py-spy"
    if verdict["outcome"] == "ok":
        return f"OK, exit code {code}"
    if verdict["outcome"] == "interrupted":
        return f"no verdict within {JOB_S:g} s"
    lines = [f"{Path(one['where']['file']).name}:{one['where']['line']}" for one in verdict["culprits"] if one["where"]]
    cause = f"`{verdict['cause']}`" if verdict["cause"] else "no cause"
    return f"{verdict['outcome']}, {verdict['certainty']}: {cause}, {', '.join(lines) or 'no line'}"


def merged(page: str, rows: Sequence[Row]) -> str:
    """The page with these rows in its table; sorted, newer ones in place of older."""
    head, _, rest = page.partition(BEGIN)
    table, _, tail = rest.partition(END)
    kept = dict(re.findall(r"^(\| 3\.\d+\.\d+ \| [^|]+ \|)(.*)$", table, re.MULTILINE))
    for row in rows:
        key, _, more = str(row).partition(f"{row.torch} |")
        kept[f"{key}{row.torch} |"] = more
    lines = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |"]
    ordered = sorted(kept.items(), key=lambda item: [int(number) for number in re.findall(r"\d+", item[0])[:6]])
    return f"{head}{BEGIN}{chr(10).join([*lines, *(key + more for key, more in ordered), ''])}{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--no-network", action="store_true")
    chosen = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="rankscope-matrix-") as place:
        sdist = build_sdist(Path(place, "dist"))
        for number, python in enumerate(chosen.python):
            folder = Path(place, str(number))
            folder.mkdir()
            rows.append(try_beside(shutil.which(python) or python, sdist, folder, network=not chosen.no_network))
            print(rows[-1], flush=True)
    if chosen.write is not None:
        chosen.write.write_text(merged(chosen.write.read_text(), rows))
    return 1 if any("FAILED" in str(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
