"""A real Slurm on this machine: a job that works, one that hangs, one that is preempted."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={control}
SlurmdPort={daemon}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 OverSubscribe=NO State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF OverSubscribe=NO State=UP
"""

HANGS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(1))
"""

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
pathlib.Path("training").touch()
if pathlib.Path("saved").exists():
    sys.exit(0)
while True:
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """munged, slurmctld and slurmd with everything in one folder; the environment that finds them."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: munge, slurmctld, slurmd, slurm-client)")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons are started as root")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    configuration = folder / "slurm.conf"
    words = {"host": socket.gethostname(), "folder": str(folder), "cores": str(os.cpu_count() or 1)}
    ports = {"control": str(free_port()), "daemon": str(free_port())}
    configuration.write_text(CONFIGURATION.format(**words, **ports))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munge = ["munged", "-F", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/key"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
    commands = [munge, ["slurmctld", "-D", "-f", str(configuration)], ["slurmd", "-D", "-f", str(configuration)]]
    with (folder / "daemons.log").open("wb") as log:
        daemons = [subprocess.Popen(words, env=environment, stdout=log, stderr=log) for words in commands]
    try:
        if not wait_until(lambda: "idle" in ask(environment, "sinfo", "-h", "-o", "%T"), 60.0):
            pytest.skip(f"Slurm does not start here: {(folder / 'daemons.log').read_text()[-300:]}")
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, check=False, capture_output=True, timeout=30)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def ask(environment: dict[str, str], *command: str) -> str:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return ended.stdout + ended.stderr


def submit(environment: dict[str, str], folder: Path, *words: str) -> str:
    """`rankscope launch slurm`; returns the job's number."""
    command = [sys.executable, "-m", "rankscope", "launch", "slurm", *words]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("job ")[1].split(";")[0]


def fields(environment: dict[str, str], job: str) -> dict[str, str]:
    shown = ask(environment, "scontrol", "show", "job", job)
    return dict(word.partition("=")[::2] for word in shown.split() if "=" in word)


def await_state(environment: dict[str, str], job: str, *states: str, limit_s: float = 180.0) -> dict[str, str]:
    wait_until(lambda: fields(environment, job).get("JobState") in states, limit_s)
    found = fields(environment, job)
    assert found.get("JobState") in states, found
    return found


def test_good_job_completes_and_a_hanging_one_fails_with_our_code(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import os\nprint('rank', os.environ['RANK'], 'is well', flush=True)\n")
    (tmp_path / "hangs.py").write_text(HANGS)
    good = submit(slurm, tmp_path, "--", "--nproc-per-node", "2", "good.py")
    done = await_state(slurm, good, "COMPLETED", "FAILED")
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), (tmp_path / f"slurm-{good}.out").read_text()
    assert "R1:rank 1 is well" in (tmp_path / f"slurm-{good}.out").read_text()
    stuck = submit(slurm, tmp_path, "--", "--nproc-per-node", "2", "--run-dir", "run", "hangs.py")
    failed = await_state(slurm, stuck, "COMPLETED", "FAILED")
    said = (tmp_path / f"slurm-{stuck}.out").read_text()
    assert (failed["JobState"], failed["ExitCode"]) == ("FAILED", "75:0"), said
    assert "HANG, proven" in said
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_bytes())
    assert (verdict["cause"], [culprit["where"]["line"] for culprit in verdict["culprits"]]) == (
        "collective-skipped",
        [7],
    )


def test_job_on_a_broken_host_goes_back_into_the_queue_without_that_host(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n")
    job = submit(slurm, tmp_path, "--", "broken.py")
    assert wait_until(lambda: fields(slurm, job).get("ExcNodeList", "(null)") != "(null)", 120.0), fields(slurm, job)
    found = await_state(slurm, job, "PENDING")
    said = (tmp_path / f"slurm-{job}.out").read_text()
    assert (found["JobState"], found["ExcNodeList"], found["Restarts"]) == ("PENDING", socket.gethostname(), "1"), said
    assert "CRASH" in ask(slurm, "scontrol", "show", "job", job).partition("Comment=rankscope: ")[2], said
    assert "goes back into the queue, without" in said
    ask(slurm, "scancel", job)


def test_preempted_job_saves_and_is_put_back_into_the_queue(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    (tmp_path / "urgent.py").write_text("print('done')\n")
    everything = f"cpus-per-task={os.cpu_count() or 1}"
    job = submit(slurm, tmp_path, "--partition", "low", "--sbatch", everything, "--", "saves.py")
    assert wait_until((tmp_path / "training").exists, 120.0)
    urgent = submit(slurm, tmp_path, "--partition", "high", "--sbatch", everything, "--", "urgent.py")
    assert wait_until((tmp_path / "saved").exists, 120.0), (tmp_path / f"slurm-{job}.out").read_text()
    assert await_state(slurm, urgent, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert wait_until(lambda: fields(slurm, job).get("Restarts") == "1", 120.0), fields(slurm, job)
