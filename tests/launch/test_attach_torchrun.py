"""`rankscope attach` to jobs of plain torchrun, which nobody prepared: hanging, two at once, left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import MARK, kill, marked
from ports import free_port
from rankscope.cli import main
from rankscope.evidence.jobs import find_jobs, job_of_pids

PROGRAM = """\
import os, sys, time
import torch, torch.distributed as dist

folder, kind = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
open(f"{folder}/ready{rank}", "w").close()

def push_metrics():
    os.read(os.pipe()[0], 1)

if kind == "elsewhere" and rank == 1:
    push_metrics()
if kind == "skips" and rank == 1:
    dist.all_reduce(torch.ones(1))
while kind == "trains":
    dist.all_reduce(torch.ones(64))
    time.sleep(0.02)
dist.barrier()
"""
PUSH_LINE = 11
pytestmark = pytest.mark.slow


@contextmanager
def torchrun(folder: Path, kind: str, *, port: int = 0, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks of plain torchrun, past their first collective."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(PROGRAM)
    where = ["--master-port", str(port)] if port else ["--standalone"]
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", "2", script, folder, kind],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables, MARK: str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not all((folder / f"ready{rank}").exists() for rank in range(2)):
            assert job.poll() is None, "the program ended before it came so far"
            assert time.monotonic() < deadline, "the program did not come so far"
            time.sleep(0.1)
        yield job
    finally:
        for pid in marked(str(folder)):  # torchrun's ranks lead sessions of their own
            kill(pid, signal.SIGKILL)
        job.wait()


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def attach(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["attach", "--json", "--watch", "3", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_rank_that_stands_elsewhere_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torchrun(tmp_path / "job", "elsewhere") as job:
        code, verdict = attach(capsys, "--pid", str(job.pid))
    assert (code, verdict["outcome"]) == (1, "hang")
    assert [(each["rank"], each["where"]["line"]) for each in verdict["culprits"]] == [(1, PUSH_LINE)]
    assert verdict["victims"] == [0]


def test_a_job_in_which_all_ranks_wait_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torchrun(tmp_path / "job", "skips") as job:
        code, verdict = attach(capsys, "--pid", str(job.pid))
    assert code in (1, 3)
    assert verdict["outcome"] in ("hang", "unknown")


def test_two_jobs_and_what_an_earlier_one_left_behind_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with torchrun(tmp_path / "earlier", "skips", port=port) as earlier:
        earlier.send_signal(signal.SIGKILL)
        earlier.wait()
        with (
            torchrun(tmp_path / "again", "trains", port=port) as again,
            torchrun(tmp_path / "other", "elsewhere") as other,
        ):
            ours = [job for job in find_jobs() if str(tmp_path) in job.command]
            assert sorted(len(job.ranks) for job in ours) == [2, 2, 2]
            left = [job for job in ours if job.orphaned]
            assert [str(tmp_path / "earlier") in job.command for job in left] == [True]
            for launcher, folder in ((again, "again"), (other, "other")):
                job = job_of_pids([launcher.pid])
                assert all(str(tmp_path / folder).encode() in command(rank.pid) for rank in job.ranks)
            code, verdict = attach(capsys, "--pid", str(again.pid))
            assert (code, verdict["outcome"]) == (0, "ok")
            assert main(["attach", "--pid", str(os.getpid())]) == 2, "both run below this process: which one?"
            listed = capsys.readouterr().err
    assert all(str(tmp_path / name / "train.py")[:20] in listed for name in ("again", "other"))
    assert listed.count("rankscope attach --pid") == 2


def test_what_nccl_tells_is_asked_for_while_stacks_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that speaks as NCCL's RAS does, for ranks of gloo: the address is taken from their environment."""
    pids: list[int] = []

    def answer() -> str:
        member = {"host": "192.0.2.2", "cuda_dev": 0, "nvml_dev": 0, "status": {"init_state": 0}}
        ranks = [
            {**member, "rank": rank, "pid": pid, "collective_counts": {"AllReduce": 7 - rank}}
            for rank, pid in enumerate(pids)
        ]
        comm = {"hash": "0xaa", "size": 2, "ranks": ranks, "missing_ranks": []}
        return "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps({"nccl_version": "2.28.9", "communicators": [comm]})

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(answer().encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with torchrun(tmp_path / "job", "elsewhere", NCCL_RAS_ADDR=address) as job:
            pids += [rank.pid for rank in job_of_pids([job.pid]).ranks]
            begun = time.monotonic()
            code, verdict = attach(capsys, "--pid", str(job.pid))
            took = time.monotonic() - begun
    assert (code, [each["rank"] for each in verdict["culprits"]]) == (1, [1])
    assert any(
        "NCCL's count of AllReduce calls in the communicator of 2: rank 1 6, rank 0 7" in line
        for line in verdict["because"]
    )
    assert took < 30


def test_a_launcher_that_only_starts_is_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    wait = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nnodes", "2", "--nproc-per-node", "1"]
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *wait, "none.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        time.sleep(1.0)
        assert job.poll() is None
        code, verdict = attach(capsys, "--pid", str(job.pid))
    finally:
        job.kill()
        job.wait()
    assert (code, verdict["outcome"], verdict["culprits"]) == (3, "unknown", [])
    assert "is a launcher, and none of its ranks has loaded torch yet" in verdict["headline"]


def test_a_shell_is_no_rank_and_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    shell = subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE)
    begun = time.monotonic()
    try:
        code, verdict = attach(capsys, "--pid", str(shell.pid))
    finally:
        shell.kill()
        shell.communicate()
    assert (code, verdict["outcome"]) == (3, "unknown")
    assert f"process {shell.pid}" in verdict["headline"]
    assert time.monotonic() - begun < 3, "there was nothing to watch"
