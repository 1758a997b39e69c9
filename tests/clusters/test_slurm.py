"""Slurm: its variables are read, and the batch script does what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankscope.clusters.command import launch_command
from rankscope.clusters.slurm_script import SlurmJob, script
from rankscope.clusters.slurm_step import expand_hosts, place_in_step
from rankscope.errors import UsageError
from rankscope.launch import options
from rankscope.launch.beforehand import place_in_slurm

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_GPUS_ON_NODE": "4",
}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("one", ["one"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("r[1-2]n[08-09]-ib", ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]),
        ("", []),
    ],
)
def test_node_lists_are_read(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_step_tells_the_place_and_every_node_finds_the_same_master() -> None:
    place = place_in_step(STEP)
    assert place is not None
    assert (place.nodes, place.node, place.master, place.gpus, place.job) == (2, 1, "gpu07", 4, "4711")
    other = place_in_step({**STEP, "SLURM_NODEID": "0", "SLURM_PROCID": "0"})
    assert other is not None
    assert (other.master, other.port) == (place.master, place.port)
    assert 1024 < place.port < 65536


def test_outside_of_a_step_nothing_is_assumed() -> None:
    assert place_in_step({}) is None
    assert place_in_step({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}) is None


def test_several_tasks_a_node_are_one_clear_line() -> None:
    with pytest.raises(UsageError, match="--ntasks-per-node=1"):
        place_in_step({**STEP, "SLURM_STEP_NUM_TASKS": "8"})


def test_run_needs_no_rendezvous_option_under_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    chosen = options.parse([__file__])
    place_in_slurm(chosen)
    assert (chosen.torch.nnodes, chosen.torch.node_rank, chosen.torch.master_addr) == ("2", 1, "gpu07")
    assert chosen.torch.nproc_per_node == "4"
    config, _, _ = options.launch_config(chosen)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 4)
    by_hand = options.parse(["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "x:1", __file__])
    place_in_slurm(by_hand)
    assert by_hand.torch.master_addr != "gpu07"


def run_script(tmp_path: Path, body: str, text: str) -> subprocess.CompletedProcess[str]:
    """The produced script for real, with a `srun` and a `scontrol` of our own on the path."""
    for name, content in (("srun", body), ("scontrol", 'echo "scontrol $*"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{content}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        ["bash", "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "9"},
    )


@pytest.mark.parametrize("code", [0, 1, 75, 77])
def test_exit_code_of_the_run_is_that_of_the_job(tmp_path: Path, code: int) -> None:
    ended = run_script(tmp_path, f"exit {code}", script(SlurmJob(("train.py",))))
    assert (ended.returncode, ended.stdout) == (code, "")


def test_when_the_time_is_up_the_ranks_are_asked_and_the_job_is_requeued(tmp_path: Path) -> None:
    body = "trap 'echo saved; exit 143' TERM\nkill -USR1 $PPID\nwhile true; do sleep 0.1; done"
    ended = run_script(tmp_path, body, script(SlurmJob(("train.py",))))
    assert ended.returncode == 143
    assert "saved\n" in ended.stdout
    assert ended.stdout.endswith("scontrol requeue 9\n")
    ended = run_script(tmp_path, body, script(SlurmJob(("train.py",), requeue=False)))
    assert "not requeued" in ended.stdout


TELLS = """while [[ $# -gt 0 && $1 != --notify ]]; do shift; done
RANKSCOPE_RETRY={retry} RANKSCOPE_HOSTS=gpu07.example.org,gpu08 sh -c "$2"
exit {code}"""


@pytest.mark.parametrize(("retry", "code"), [("no", 1), ("yes", 1), ("unknown", 75), ("elsewhere", 0)])
def test_job_stays_out_of_the_queue_unless_another_host_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run_script(tmp_path, TELLS.format(retry=retry, code=code), script(SlurmJob(("train.py",))))
    assert (ended.returncode, ended.stdout) == (code, "")


def test_broken_hosts_are_left_out_when_the_job_goes_back_into_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run_script(tmp_path, TELLS.format(retry="elsewhere", code=1), script(SlurmJob(("train.py",))))
    assert ended.returncode == 1
    assert "scontrol requeue 9\n" in ended.stdout
    assert ended.stdout.endswith("scontrol update JobId=9 ExcNodeList=gpu07,gpu08\n")
    assert not list(tmp_path.glob(".rankscope-retry*"))
    alone = script(SlurmJob(("train.py",), requeue=False))
    assert "--notify" not in alone
    assert run_script(tmp_path, "exit 1", alone).stdout == ""


def test_dry_run_prints_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "slurm",
        "--nodes",
        "2",
        "--gpus-per-node",
        "8",
        "--time",
        "1:00:00",
        "--sbatch",
        "exclusive",
        "--dry-run",
        "--",
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").touch()
    assert launch_command([*arguments, "--nproc-per-node", "8", "my train.py", "--lr", "1"]) == 0
    text = capsys.readouterr().out
    for line in ("--nodes=2", "--gpus-per-node=8", "--time=1:00:00", "--exclusive", "--requeue", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}\n" in text
    assert "-m rankscope run --notify " in text
    assert "RETRY_FILE\"' --nproc-per-node 8 'my train.py' --lr 1 &" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["mars"], "no place 'mars'"), (["slurm"], "nothing to run"), (["slurm", "--nodes", "0", "x.py"], "at least 1")],
)
def test_mistake_is_one_line(arguments: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        launch_command(arguments)
