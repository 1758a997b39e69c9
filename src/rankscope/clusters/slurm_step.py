"""What Slurm tells a task of a job step, so that `srun rankscope run train.py` needs no rendezvous option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.errors import UsageError

_FIRST_PORT = 20000
_PORTS = 20000


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Where this task stands among the nodes of its step."""

    nodes: int
    node: int
    master: str
    port: int
    job: str
    gpus: int | None
    """Of this node, where Slurm gave any."""


def place_in_step(environment: Mapping[str, str]) -> SlurmPlace | None:
    """None outside of a job step. Raises UsageError for a step with several tasks a node."""
    nodes = environment.get("SLURM_STEP_NUM_NODES")
    job = environment.get("SLURM_JOB_ID")
    if nodes is None or job is None or "SLURM_PROCID" not in environment:
        return None
    tasks = environment.get("SLURM_STEP_NUM_TASKS", nodes)
    if tasks != nodes:
        raise UsageError(
            f"Slurm started {tasks} tasks on {nodes} nodes: rankscope run starts the ranks of a node itself. "
            "Write srun --ntasks-per-node=1 and say the number of ranks with --nproc-per-node"
        )
    hosts = expand_hosts(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
    if not hosts:
        raise UsageError("Slurm names no node (SLURM_STEP_NODELIST is empty): give --master-addr and --node-rank")
    # Two jobs on one node get different ports, and every node of a job finds the same.
    step = environment.get("SLURM_STEP_ID", "0")
    number = int(job) * 31 + (int(step) if step.isdigit() else 0) if job.isdigit() else 0
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    return SlurmPlace(
        nodes=int(nodes),
        node=int(environment.get("SLURM_NODEID", "0")),
        master=hosts[0],
        port=_FIRST_PORT + number % _PORTS,
        job=job,
        gpus=int(gpus) if gpus.isdigit() else None,
    )


def expand_hosts(text: str) -> list[str]:
    """`gpu[01-03,7],login` → gpu01, gpu02, gpu03, gpu7, login."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip()):
        hosts += _expand(part)
    return hosts


def _expand(part: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    numbers: list[str] = []
    for piece in match[1].split(","):
        first, _, last = piece.partition("-")
        if last:
            numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            numbers.append(first)
    return [host for number in numbers for host in _expand(f"{before}{number}{after}")]
