"""Looks with `rankscope attach` at programs of the zoo that plain torchrun started, some time after their fault.

python zoo/attach.py --nccl --jobs 4       the hangs among the cases for NCCL
python zoo/attach.py NAME...               some of the gloo ones
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from expectation import CASES, NCCL_CASES, Case, case_names, load_case
from judge import GotVerdict, blamed_ranks, ranks_text
from started import MARK, kill_all, leftovers, marked

AFTER_FAULT_S = 12.0
_UNTIL_FAULT_S = 120.0
_LOOK_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Look:
    case: Case
    verdict: GotVerdict | None
    seconds: float = 0.0
    trouble: str = ""

    @property
    def judged(self) -> str:
        """`right`, `nobody named`, or what must never be."""
        if self.verdict is None:
            return self.trouble
        expect, named = self.case.expect, blamed_ranks(self.verdict)
        if expect.healthy:
            return "right" if self.verdict.outcome in ("ok", "slow", "unknown") else "FALSE ALARM"
        if self.verdict.outcome == "ok":
            return "OK OF A HANG"
        if not named:
            return "nobody named"
        return "right" if named == expect.ranks else "WRONG BLAME"


def look_at(name: str, root: Path, base: Path) -> Look:
    """Starts the program, looks at it once, and ends it; nothing of it is left."""
    case, folder = load_case(name, root), base / name
    folder.mkdir()
    mark = uuid.uuid4().hex
    arguments = [argument.replace("{tmp}", str(folder)) for argument in case.expect.args]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.expect.nproc)]
    log = folder / "output.log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*launch, "train.py", *arguments],
            cwd=case.folder,
            env={**os.environ, **_own_ras(), **case.expect.env, MARK: mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if not _wait_for(case.expect.fault_marker.encode(), log, job):
            return Look(case, None, trouble="its fault never came")
        time.sleep(AFTER_FAULT_S)
        return _attach(case, job.pid)
    finally:
        kill_all(marked(mark))
        job.wait()
        leftovers(mark, grace_s=5.0)


def _own_ras() -> dict[str, str]:
    """Jobs on one machine would take the port of NCCL's RAS away from one another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"NCCL_RAS_ADDR": f"127.0.0.1:{free.getsockname()[1]}"}


def _wait_for(text: bytes, log: Path, job: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _UNTIL_FAULT_S
    while time.monotonic() < deadline and job.poll() is None:
        if text in log.read_bytes():
            return True
        time.sleep(0.2)
    return text in log.read_bytes()


def _attach(case: Case, pid: int) -> Look:
    began = time.monotonic()
    command = [sys.executable, "-m", "rankscope", "attach", "--json", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_LOOK_LIMIT_S)
    try:
        verdict = msgspec.json.decode(done.stdout, type=GotVerdict)
    except msgspec.MsgspecError:
        return Look(
            case, None, trouble=done.stderr.decode(errors="replace").strip()[-300:] or f"code {done.returncode}"
        )
    return Look(case, verdict, time.monotonic() - began)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Look at hanging programs of the zoo with rankscope attach.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; all that hang when none is given")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--nccl", dest="root", action="store_const", const=NCCL_CASES, default=CASES)
    parser.add_argument("--root", dest="root", type=Path, help="another folder of cases")
    arguments = parser.parse_args(argv)
    known = {name: load_case(name, arguments.root).expect for name in case_names(arguments.root)}
    names = arguments.names or [name for name, expect in known.items() if expect.outcome == "hang" and not expect.kill]
    looks = []
    with tempfile.TemporaryDirectory(prefix="rankscope-attach-") as base, ThreadPoolExecutor(arguments.jobs) as pool:
        for look in pool.map(lambda name: look_at(name, arguments.root, Path(base)), names):
            looks.append(look)
            said = look.verdict
            told = "-" if said is None else f"{said.outcome}, {said.certainty}, {said.cause or '-'}"
            ranks = "-" if said is None else ranks_text(blamed_ranks(said))
            print(f"{look.case.name:<20} {told:<40} {ranks:<6} {look.seconds:5.1f} s  {look.judged}", flush=True)
            if said is not None:
                print(f"    {said.headline}", flush=True)
    bad = [look for look in looks if look.judged not in ("right", "nobody named")]
    right = sum(look.judged == "right" for look in looks)
    print(f"{right}/{len(looks)} right, {len(looks) - right - len(bad)} without a name, {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
