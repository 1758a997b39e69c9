"""Takes evidence of a job that somebody else started, from outside, without stopping or changing it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence import flight, procfs
from rankscope.evidence.collect import JobFacts, KnownRank, collect
from rankscope.evidence.installed_program import with_program
from rankscope.evidence.jobs import FoundJob, FoundRank
from rankscope.evidence.model import Evidence, Exit, RankEvidence
from rankscope.evidence.worker_socket import read_worker_socket

_DUMP_FILE = "/tmp/nccl_trace_rank_"
"""Torch's own default."""
_DUMP_WAIT_S = 5.0
_RANK_FRAMES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_LAUNCHER_FRAMES = ("/torch/distributed/run.py", "/torch/distributed/launch", "/torch/distributed/elastic/")
_LOADER_WORKER = "/torch/utils/data/_utils/worker.py"


def take_evidence(job: FoundJob, watch_s: float) -> Evidence:
    """What can be seen of the job within `watch_s` seconds: stacks and processes at least twice, and what torch has
    recorded, where the job was started so that it can be asked."""
    samples = max(2, min(6, round(watch_s / 1.5) + 1))
    facts = JobFacts(
        host=socket.gethostname(),
        world_size=job.world_size,
        started_at=min(rank.started_at for rank in job.ranks),
        attempt=attempt_of(job),
        pages=pages_of(job),
        command=(job.command,),
        versions={},
    )
    asked = {rank.rank: _ask_for_dump(rank) for rank in job.ranks}
    evidence = collect(
        facts, lambda: _known(job), "attach", samples=samples, gap_s=watch_s / (samples - 1), pause=False
    )
    ranks = [with_program(_with_record(seen, job, asked)) for seen in evidence.ranks]
    return replace(evidence, ranks=tuple(ranks))


def uses_distributed(evidence: Evidence) -> bool:
    """Whether the processes are ranks and not, say, data-loading workers: one of them stands in torch.distributed, or
    waits for it with a thread."""
    frames = [
        frame.file
        for seen in evidence.ranks
        for sample in seen.stacks
        for thread in sample.threads
        for frame in thread.frames
    ]
    if any(_LOADER_WORKER in file for file in frames):
        return False
    inside = [file for file in frames if not any(part in file for part in _LAUNCHER_FRAMES)]
    return any(part in file for file in inside for part in _RANK_FRAMES)


def attempt_of(job: FoundJob) -> int:
    """How often it had been restarted."""
    counts = [rank.environment.get("TORCHELASTIC_RESTART_COUNT", "") for rank in job.ranks]
    return max((int(count) for count in counts if count.isdigit()), default=0)


def pages_of(job: FoundJob) -> Path | None:
    """The probe's pages, for a job of `rankscope run`."""
    folder = job.ranks[0].environment.get("RANKSCOPE_PAGES")
    return Path(folder) if folder and Path(folder).is_dir() else None


def _known(job: FoundJob) -> Sequence[KnownRank]:
    return [
        KnownRank(
            rank=rank.rank, local_rank=rank.local_rank, pid=rank.pid, started_at=rank.started_at, exit=_ended(rank)
        )
        for rank in job.ranks
    ]


def _ended(rank: FoundRank) -> Exit | None:
    """A process that went away meanwhile; with which code its parent knows, not we. Zombies tell."""
    try:
        if abs(procfs.start_time(rank.pid) - rank.started_at) < 5.0:
            return None
    except ProcessLookupError:
        pass
    return Exit(code=0, at=time.time(), by_launcher=True)


def _ask_for_dump(rank: FoundRank) -> tuple[str, float] | None:
    """Writes to the pipe at which NCCL takes requests for a dump; the file that it will write, and since when."""
    stem = rank.environment.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not stem:
        return None
    root = f"/proc/{rank.pid}/root"
    pipe = f"{root}{stem}{rank.rank}.pipe"
    target = rank.environment.get("TORCH_FR_DUMP_TEMP_FILE") or rank.environment.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    begun = time.time()
    try:
        # Nonblocking: without a reader the open fails instead of waiting.
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return f"{root}{target or _DUMP_FILE}{rank.rank}", begun


def _with_record(seen: RankEvidence, job: FoundJob, asked: dict[int, tuple[str, float] | None]) -> RankEvidence:
    """Torch's flight record, over the worker server's socket or through NCCL's pipe, where the job has one."""
    if seen.collectives or seen.exit is not None:
        return seen
    rank = next(rank for rank in job.ranks if rank.rank == seen.rank)
    path = rank.environment.get("TORCH_WORKER_SERVER_SOCKET")
    request = asked.get(seen.rank)
    try:
        if path and os.path.exists(path):
            record = flight.parse_flight_json(read_worker_socket(path))
        elif request is not None:
            record = flight.parse_flight_pickle(_read_dump(*request))
        else:
            why = "the job was not started so that its flight recorder can be asked from outside"
            return replace(seen, missing={**seen.missing, "collectives": why})
    except (EvidenceError, OSError) as error:
        return replace(seen, missing={**seen.missing, "collectives": str(error)})
    missing = {what: why for what, why in seen.missing.items() if what != "collectives"}
    return replace(
        seen,
        collectives=record.collectives,
        last_enqueued=record.last_enqueued,
        last_completed=record.last_completed,
        groups=record.groups,
        missing=missing,
    )


def _read_dump(path: str, since: float) -> bytes:
    """The dump, once it is written and no longer grows."""
    deadline = time.monotonic() + _DUMP_WAIT_S
    size = -1
    while time.monotonic() < deadline:
        if os.path.exists(path):
            about = os.stat(path)
            if about.st_mtime >= since - 1.0 and about.st_size > 0:
                if about.st_size == size:
                    return Path(path).read_bytes()
                size = about.st_size
        time.sleep(0.2)
    raise EvidenceError(f"NCCL was asked for a dump and wrote none to {path} within {_DUMP_WAIT_S:g} s")
