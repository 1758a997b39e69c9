"""A real Slurm on this machine, with everything in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from conftest import wait_until
from ports import free_port

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
