"""Starts the ranks of a check on this machine, or is one rank of a check that somebody else started."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rankscope.checks.child import Child, Ended, run_child
from rankscope.checks.model import Findings, Flaw
from rankscope.checks.world import CheckFailed, is_rank
from rankscope.report.words.phrases import ranks_text

RESULTS = "RANKSCOPE_CHECK_RESULTS"
LIMIT = "RANKSCOPE_CHECK_LIMIT_S"
_WORK_S = 20.0
"""For what ranks do once they have found each other."""


def run_team(
    module: str, ranks: int, limit_s: float, environment: Mapping[str, str], most_s: float | None = None
) -> Findings:
    """Findings of all ranks, each once. With RANK in the environment only that rank is run, here.

    `limit_s`: in which the ranks must find each other; `most_s`: for everything, of ranks that are started here.
    """
    most = limit_s + _WORK_S if most_s is None else min(limit_s + _WORK_S, most_s)
    with tempfile.TemporaryDirectory(prefix="rankscope-check-") as folder:
        extra = {RESULTS: folder, LIMIT: str(limit_s)}
        if is_rank(environment):
            ended = {int(environment["RANK"]) if environment["RANK"].isdigit() else 0: _one(module, extra, limit_s)}
        else:
            ended = _all(module, ranks, extra, most)
        return _gather(Path(folder), ended, cut=most < limit_s + _WORK_S)


def _one(module: str, extra: dict[str, str], limit_s: float) -> Ended:
    return run_child(["-m", module], limit_s=2 * limit_s + 30, environment=extra)


def _all(module: str, ranks: int, extra: dict[str, str], most_s: float) -> dict[int, Ended]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = {}
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        children[rank] = Child(["-m", module], {**extra, **own, "TORCHELASTIC_USE_AGENT_STORE": "False"})
    deadline = time.monotonic() + most_s
    try:
        while any(child.poll() is None for child in children.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        ended = {rank: child.finish(None if child.poll() is not None else "time") for rank, child in children.items()}
    return ended


def _gather(folder: Path, ended: dict[int, Ended], *, cut: bool) -> Findings:
    """`cut`: they had less time than they may need, which says more about the machine than about them."""
    flaws: dict[tuple[str, str], Flaw] = {}
    facts: dict[str, None] = {}
    silent = []
    for rank, end in ended.items():
        file = folder / f"{rank}.json"
        if file.exists():
            found = msgspec.json.decode(file.read_bytes(), type=Findings)
            flaws.update({(flaw.cause, flaw.what): flaw for flaw in found.flaws})
            facts.update(dict.fromkeys(found.facts))
        else:
            silent.append((rank, end))
    for rank, end in silent:
        stood = (folder / f"{rank}.step").read_text() if (folder / f"{rank}.step").exists() else "its start"
        if end.over == "time":
            what, cause = (
                f"rank {rank} did not get past {stood} within {end.seconds:.0f} s",
                "slow-rank" if cut else "comm-error",
            )
        elif end.code is not None and end.code < 0:
            what, cause = f"rank {rank} died of signal {-end.code} in {stood}", "native-crash"
        else:
            what, cause = f"rank {rank} failed in {stood}: {end.last_words or f'exit code {end.code}'}", "exception"
        flaws[cause, what] = Flaw(cause, what, "see the output of python -m rankscope.checks.ddp", rank=rank)
    if not flaws and len(ended) > 1:
        facts[f"{ranks_text(ended)} took part"] = None
    return Findings(flaws=tuple(flaws.values()), facts=tuple(facts))


def own_limit(otherwise: float) -> float:
    text = os.environ.get(LIMIT, "")
    try:
        return float(text)
    except ValueError:
        return otherwise


def standing_in(step: str, rank: int | str) -> None:
    """Tells whoever started this rank where it stands, in case it never comes back."""
    folder = os.environ.get(RESULTS)
    if folder:
        (Path(folder) / f"{rank}.step").write_text(step)


def as_rank(work: Callable[[], Findings]) -> int:
    """Runs a rank's part, keeps what it found for whoever started it, and returns the exit code."""
    try:
        found = work()
    except CheckFailed as error:
        found = Findings(flaws=(error.flaw,))
    folder, rank = os.environ.get(RESULTS), os.environ.get("RANK", "0")
    if folder:
        file = Path(folder) / f"{rank if rank.isdigit() else 0}.json"
        file.write_bytes(msgspec.json.encode(found))
    for flaw in found.flaws:
        print(f"[rank {rank}] FAILED ({flaw.cause}): {flaw.what}\n[rank {rank}] fix: {flaw.fix}", flush=True)
    return 1 if found.flaws else 0
