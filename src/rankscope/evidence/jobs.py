"""Finds distributed jobs among the processes of this machine, whoever started them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec

from rankscope.evidence import launchers, procfs
from rankscope.evidence.time_limit import call_within
from rankscope.evidence.told_ranks import ranks_by_arguments

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "", ""),
)
_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "PMI_ID")
_READ_LIMIT_S = 1.0
_SPAWNED = ("--multiprocessing-fork", "multiprocessing.spawn", "multiprocessing.forkserver")


class FoundRank(msgspec.Struct, frozen=True):
    pid: int
    rank: int
    local_rank: int
    started_at: float
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Only what tells about the job; never shown or saved."""


class FoundJob(msgspec.Struct, frozen=True):
    ranks: tuple[FoundRank, ...]
    world_size: int
    command: str
    launcher: str
    """`torchrun`, `srun`, `mpirun`, `multiprocessing`, or `processes` given by their pids."""
    guessed_ranks: bool = False
    """Ranks are numbered in the order in which the processes were started: nothing tells them."""
    orphaned: bool = False
    """Left behind by an earlier job: its launcher is gone."""


class NoRanks(LookupError):
    """The processes are no ranks, and none is below them."""

    def __init__(self, pids: Sequence[int], command: str, *, launcher: bool) -> None:
        super().__init__(f"no rank: {', '.join(map(str, pids))}")
        self.pids = tuple(pids)
        self.command = command
        self.launcher = launcher
        """A launcher whose ranks have not come so far yet."""


class SeveralJobs(LookupError):
    """More than one job runs below the process."""

    def __init__(self, jobs: tuple[FoundJob, ...]) -> None:
        super().__init__(f"{len(jobs)} jobs")
        self.jobs = jobs


def with_told_ranks(job: FoundJob) -> FoundJob:
    """The job with the ranks that its processes were told by argument, where nothing else tells them."""
    if not job.guessed_ranks:
        return job
    told = ranks_by_arguments([rank.pid for rank in job.ranks])
    if told is None:
        return job
    ranks = [
        FoundRank(rank.pid, told[rank.pid], told[rank.pid], rank.started_at, rank.environment) for rank in job.ranks
    ]
    ranks.sort(key=lambda rank: rank.rank)
    return FoundJob(tuple(ranks), max(job.world_size, ranks[-1].rank + 1), job.command, job.launcher)


class _Process(msgspec.Struct, frozen=True):
    pid: int
    ppid: int
    started_at: float
    environment: dict[str, str]


def find_jobs() -> tuple[FoundJob, ...]:
    """The jobs of which ranks run on this machine and may be looked into, oldest first."""
    processes = _torch_processes()
    jobs = _announced(processes)
    taken = {rank.pid for job in jobs for rank in job.ranks}
    return tuple(sorted((*jobs, *_spawned(processes, taken)), key=lambda job: job.ranks[0].started_at))


def job_of_pids(pids: Sequence[int]) -> FoundJob:
    """The job that the processes are ranks of. A launcher stands for its ranks, and one rank for its whole job.

    Raises ProcessLookupError for a pid that does not exist, NoRanks for a launcher without ranks or for something else
    that runs no Python, and SeveralJobs for, say, the shell that started two.
    """
    for pid in pids:
        procfs.start_time(pid)
    jobs = find_jobs()
    wanted = set(pids)
    for job in jobs:
        if wanted <= {rank.pid for rank in job.ranks}:
            return job
    if len(pids) == 1:
        below = set(procfs.descendants(pids[0]))
        found = tuple(job for job in jobs if {rank.pid for rank in job.ranks} <= below)
        if len(found) > 1:
            raise SeveralJobs(found)
        if found:
            return found[0]
    _must_be_ranks(pids)
    return _by_hand(pids)


def _must_be_ranks(pids: Sequence[int]) -> None:
    """The user says that they are ranks: they may be, if they run Python and are no launcher."""
    for pid in pids:
        command = _command(pid)
        told = told_rank(read_job_environment(pid)) is not None
        starts = (
            any(told_rank(read_job_environment(child)) is not None for child in procfs.descendants(pid)) and not told
        )
        if starts or launchers.is_launcher(command):
            raise NoRanks((pid,), command, launcher=True)
    if not any(map(launchers.runs_python, pids)):
        raise NoRanks(pids, _command(pids[0]), launcher=False)


def _by_hand(pids: Sequence[int]) -> FoundJob:
    """Processes that nothing shows to be ranks: the user says so."""
    ranks = []
    guessed = False
    for number, pid in enumerate(pids):
        environment = read_job_environment(pid)
        told = told_rank(environment)
        guessed = guessed or told is None
        rank, local = (told[0], told[2]) if told is not None else (number, number)
        ranks.append(FoundRank(pid, rank, local, procfs.start_time(pid), environment))
    if len({rank.rank for rank in ranks}) < len(ranks):
        guessed = True
        ranks = [
            FoundRank(rank.pid, number, number, rank.started_at, rank.environment) for number, rank in enumerate(ranks)
        ]
    worlds = [told[1] for rank in ranks if (told := told_rank(rank.environment)) is not None]
    world = max([len(ranks), *(() if guessed else worlds)])
    return FoundJob(tuple(ranks), world, procfs.command_line(pids[0]), "processes", guessed)


def _torch_processes() -> dict[int, _Process]:
    """Python processes that have loaded torch, and may be looked into."""
    found: dict[int, _Process] = {}
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        pid = int(name)
        try:
            if "python" not in os.path.basename(os.readlink(f"/proc/{pid}/exe")) or not _loads_torch(pid):
                continue
            found[pid] = _Process(pid, procfs.parent(pid), procfs.start_time(pid), read_job_environment(pid))
        except OSError:
            continue  # gone meanwhile, or another user's
    return found


def _loads_torch(pid: int) -> bool:
    def look() -> bool:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return b"/libtorch_cpu.so" in maps.read() or False

    try:
        return call_within(_READ_LIMIT_S, look)
    except TimeoutError:
        return False


def read_job_environment(pid: int) -> dict[str, str]:
    """Of a process's environment, what tells about its job; empty where it may not be read."""

    def read() -> bytes:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()

    try:
        raw = call_within(_READ_LIMIT_S, read).decode(errors="replace")
    except (OSError, TimeoutError):
        return {}
    pairs = (entry.partition("=") for entry in raw.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs if _matters(name)}


def _matters(name: str) -> bool:
    return (
        name in _JOB_VARIABLES
        or any(name in names for names in _RANK_VARIABLES)
        or name == "NODE_RANK"
        or name.startswith(("TORCH_", "TORCHELASTIC_", "RANKSCOPE_", "MASTER_"))
    )


def told_rank(environment: dict[str, str]) -> tuple[int, int, int] | None:
    """Rank, size of the world (0: not told), local rank, by the environment that a launcher gave the process."""
    for rank, world, local in _RANK_VARIABLES:
        number = environment.get(rank, "")
        if number.isdigit():
            size, place = environment.get(world, ""), environment.get(local, "")
            return int(number), int(size) if size.isdigit() else 0, int(place) if place.isdigit() else int(number)
    return None


def _announced(processes: dict[int, _Process]) -> list[FoundJob]:
    """Jobs whose launcher tells each process its rank in the environment."""
    told = {pid: rank for pid, process in processes.items() if (rank := told_rank(process.environment)) is not None}
    by_job: dict[tuple[object, ...], list[int]] = {}
    for pid in told:
        if _inherited(pid, processes, told) or _launches(pid, processes, told):
            continue
        by_job.setdefault(_job_key(processes[pid]), []).append(pid)
    by_job = {key: pids for mixed, group in by_job.items() for key, pids in _by_launcher(mixed, group, processes)}
    jobs = []
    for pids in by_job.values():
        ranks = [
            FoundRank(pid, told[pid][0], told[pid][2], processes[pid].started_at, processes[pid].environment)
            for pid in pids
        ]
        if len(ranks) == 1 and told[pids[0]][1] <= 1:
            continue  # a program alone, which has nobody to wait for
        ranks.sort(key=lambda rank: (rank.rank, rank.started_at))
        newest = {rank.rank: rank for rank in ranks}
        world = max(told[pid][1] for pid in pids)
        first = ranks[0]
        jobs.append(
            FoundJob(
                ranks=tuple(newest.values()),
                world_size=max(world, len(newest)),
                command=_command(first.pid),
                launcher=_launcher(first.environment),
                orphaned=all(launchers.is_orphan(rank.pid, rank.environment) for rank in newest.values()),
            )
        )
    return jobs


def _by_launcher(
    key: tuple[object, ...], pids: list[int], processes: dict[int, _Process]
) -> Iterable[tuple[tuple[object, ...], list[int]]]:
    """One group, or several where a rank occurs twice: a job takes the port of an earlier one whose ranks still run."""
    ranks = [processes[pid].environment.get("RANK", "") for pid in pids]
    if len(set(ranks)) == len(ranks) or "" in ranks:
        return [(key, pids)]
    found: dict[tuple[object, ...], list[int]] = {}
    for pid, rank in zip(pids, ranks, strict=True):
        found.setdefault((*key, launchers.launcher_of(pid, rank)), []).append(pid)
    return found.items()


def _inherited(pid: int, processes: dict[int, _Process], told: dict[int, tuple[int, int, int]]) -> bool:
    """A data-loading worker or another child: it has the rank from its parent, which is the rank itself."""
    return any(told.get(ancestor) == told[pid] for ancestor in _ancestors(pid, processes))


def _launches(pid: int, processes: dict[int, _Process], told: dict[int, tuple[int, int, int]]) -> bool:
    """A launcher of this machine that srun started, whose children are told ranks of their own, or will be."""
    if "RANK" in processes[pid].environment:
        return False
    if launchers.is_launcher(_command(pid)):
        return True
    return any(pid in _ancestors(other, processes) and "RANK" in processes[other].environment for other in told)


def _ancestors(pid: int, processes: dict[int, _Process]) -> Iterable[int]:
    current = processes[pid].ppid
    for _ in range(64):
        if current <= 1:
            return
        yield current
        known = processes.get(current)
        try:
            current = known.ppid if known is not None else procfs.parent(current)
        except (OSError, ProcessLookupError):
            return


def _job_key(process: _Process) -> tuple[object, ...]:
    values = tuple(process.environment.get(name, "") for name in _JOB_VARIABLES)
    return values if any(values) else (process.ppid,)


def _launcher(environment: dict[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    if "OMPI_COMM_WORLD_RANK" in environment or "PMI_RANK" in environment:
        return "mpirun"
    return "srun" if "SLURM_PROCID" in environment else "a launcher that sets RANK"


def _command(pid: int) -> str:
    try:
        return procfs.command_line(pid)
    except (OSError, ProcessLookupError):
        return ""


def _spawned(processes: dict[int, _Process], taken: set[int]) -> list[FoundJob]:
    """Children of one parent, made by multiprocessing; whether they are ranks their stacks must show."""
    by_parent: dict[int, list[_Process]] = {}
    for process in processes.values():
        if process.pid in taken or any(ancestor in taken for ancestor in _ancestors(process.pid, processes)):
            continue
        if _is_spawned(process, processes):
            by_parent.setdefault(process.ppid, []).append(process)
    jobs = []
    for parent, children in by_parent.items():
        # Clock ticks are coarser than the starts: among equals the pids tell the order.
        first = min(process.started_at for process in children)
        children.sort(key=lambda process, first=first: (round(process.started_at - first), process.pid))  # type: ignore[misc]
        ranks = tuple(
            FoundRank(process.pid, number, number, process.started_at, process.environment)
            for number, process in enumerate(children)
        )
        if len(ranks) > 1:
            jobs.append(FoundJob(ranks, len(ranks), _command(parent), "multiprocessing", guessed_ranks=True))
    return jobs


def _is_spawned(process: _Process, processes: dict[int, _Process]) -> bool:
    own = _command(process.pid)
    if any(word in own for word in _SPAWNED):
        return "resource_tracker" not in own
    # Forked: it has the command line of its parent.
    return process.ppid in processes and own == _command(process.ppid)
