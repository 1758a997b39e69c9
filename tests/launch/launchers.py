"""Launchers of other people, as `rankscope watch` meets them: how each is called, and what of it can be seen."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "launched"


@dataclass(frozen=True, slots=True)
class Launcher:
    name: str
    """As a person would type it."""
    command: tuple[str, ...]
    found_by: str
    """How a rank is known."""
    before_joining: str
    """What is known of a rank that has not joined a process group."""
    package: str = ""
    """Of Python, which nothing here installs."""
    fixture: str = ""
    """Gives the environment in which the command works."""
    env: tuple[tuple[str, str], ...] = ()

    @property
    def missing(self) -> str | None:
        if self.package and not _is_there(self.package):
            return self.package
        return None if shutil.which(self.command[0], path=path_of_programs()) else self.command[0]


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False  # what it is a part of is missing


def path_of_programs() -> str:
    """Console scripts of this interpreter's environment come first."""
    return os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))


PLAIN = str(PROGRAMS / "plain.py")
LOOP = """
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT
for RANK in 0 1; do RANK=$RANK LOCAL_RANK=$RANK "$0" "$1" & ranks+=($!); done
for rank in "${ranks[@]}"; do wait "$rank" || code=$?; done
exit "${code:-0}"
"""
LAUNCHERS = (
    Launcher(
        "torchrun train.py",
        ("torchrun", "--standalone", "--nproc-per-node=2", PLAIN),
        "`RANK`",
        "all of it, from its start",
    ),
    Launcher(
        "python -m torch.distributed.launch train.py (injects --local-rank)",
        (sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2", "--master-port=PORT", PLAIN),
        "`RANK`",
        "all of it, from its start",
    ),
    Launcher(
        "accelerate launch train.py",
        (
            "accelerate",
            "launch",
            "--multi_gpu",
            "--num_processes=2",
            "--num_machines=1",
            "--mixed_precision=no",
            "--dynamo_backend=no",
            "--main_process_port=PORT",
            PLAIN,
        ),
        "`RANK`",
        "all of it, from its start",
    ),
    Launcher(
        "python train.py (Lightning starts the other ranks)",
        (sys.executable, str(PROGRAMS / "with_lightning.py")),
        "rank 0 by joining, the others by `LOCAL_RANK` once rank 0 joins",
        "what it does is seen once rank 0 has begun to join",
    ),
    Launcher(
        "python train.py (torch.multiprocessing.spawn)",
        (sys.executable, str(PROGRAMS / "spawned.py")),
        "by joining; the number that spawn gave it once another one joins",
        "what it does is seen once another rank has begun to join",
    ),
    Launcher(
        "python train.py (start_processes with fork)",
        (sys.executable, str(PROGRAMS / "spawned.py"), "--fork"),
        "by joining",
        "nothing: a forked process is known when it joins",
    ),
    Launcher(
        "mpirun -np 2 python train.py",
        ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, PLAIN),
        "`OMPI_COMM_WORLD_RANK` once one of them joins",
        "what it does is seen once another rank has begun to join, or after 30 s",
    ),
    Launcher(
        "notebook_launcher(train, num_processes=2)",
        (sys.executable, str(PROGRAMS / "in_a_notebook.py")),
        "by joining",
        "nothing: a forked process is known when it joins",
    ),
    Launcher(
        "for RANK in 0 1; do python train.py & done (a script of yours)",
        ("bash", "-c", LOOP, sys.executable, PLAIN),
        "`RANK`",
        "all of it, from its start",
    ),
    Launcher(
        "deepspeed train.py",
        ("deepspeed", "--num_accelerators=2", "--master_port=PORT", str(PROGRAMS / "with_deepspeed.py")),
        "`RANK`",
        "all of it, from its start",
        package="deepspeed",
        env=(("DS_ACCELERATOR", "cpu"),),
    ),
    Launcher(
        "srun --ntasks=2 python train.py",
        ("srun", "--ntasks=2", "--overcommit", sys.executable, PLAIN),
        "`SLURM_PROCID` once one of them joins",
        "what it does is seen once another rank has begun to join, or after 30 s",
        fixture="slurm",
    ),
    Launcher(
        "python train.py (Ray: actors that call init_process_group)",
        (sys.executable, str(PROGRAMS / "ray_actors.py")),
        "by joining",
        "nothing: an actor's process is known when it joins",
        package="ray",
        env=(("RAY_DEDUP_LOGS", "0"),),
    ),
    Launcher(
        "python train.py (Ray Train: TorchTrainer)",
        (sys.executable, str(PROGRAMS / "ray_train.py")),
        "by joining",
        "nothing: a worker's process is known when it joins",
        package="ray.train.v2",
        env=(("RAY_DEDUP_LOGS", "0"), ("RAY_TRAIN_V2_ENABLED", "1")),
    ),
)
