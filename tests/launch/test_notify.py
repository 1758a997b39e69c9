"""`--notify` and the places where others look, with real jobs and real receivers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from receiver import receiver

from conftest import COMMAND, Rankscope, wait_until
from ports import free_port
from rankscope.report.notices.notifier import LIMIT_S

pytestmark = pytest.mark.slow
CRASHES = """
import os, sys
if os.environ["RANK"] == "1":
    raise ValueError("no such split: password=hunter2hunter2")
"""
READS = 'import os, sys; assert "RANKSCOPE_PAGES" not in os.environ; print(sys.stdin.read())'
HANGS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""


def test_everybody_is_told_in_a_form_of_their_own(rankscope: Rankscope) -> None:
    """With the verdict in the places where a pod, Slurm and GitHub show it."""
    told, commands = rankscope.folder / "told.json", rankscope.folder / "commands"
    (rankscope.folder / "bin").mkdir()
    scontrol = rankscope.folder / "bin/scontrol"
    scontrol.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >> {commands}\necho >> {commands}\necho "JobId=9 Comment=(null)"\n'
    )
    scontrol.chmod(0o755)
    log = rankscope.folder / "termination"
    env = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(rankscope.folder),
        "RANKSCOPE_TERMINATION_LOG": str(log),
        "SLURM_JOB_ID": "9",
        "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
    }
    with receiver() as here:
        targets = [
            f"{here.address}/T0p/s3cretpath",
            f"slack+{here.address}/slack",
            f"discord+{here.address}/discord",
            f"teams+{here.address}/teams",
            f"{sys.executable} -c '{READS}' > {told}; echo \"$RANKSCOPE_OUTCOME $RANKSCOPE_EVENT\" >> {told}.text",
        ]
        options = [word for target in targets for word in ("--notify", target)]
        ended = rankscope.run(*options, rankscope.script(CRASHES), env=env)
    said = ended.err.decode()
    assert ended.code == 1
    assert "--notify" not in said, said
    (plain,) = here.at("/T0p/s3cretpath")
    for fact in ("schema", "outcome", "cause", "victims", "exit_codes", "retry"):
        assert plain.body[fact] == ended.verdict[fact]
    assert plain.headers["X-Rankscope-Event"] == "ended"
    assert plain.headers["X-Rankscope-Run"] == str(ended.run_dir)
    assert "train.py:3" in here.at("/slack")[0].body["text"]
    assert "train.py:3" in here.at("/discord")[0].body["content"]
    card = here.at("/teams")[0].body["attachments"][0]["content"]
    assert "train.py:3" in json.dumps(card)
    assert json.loads(told.read_text()) == plain.body
    assert Path(f"{told}.text").read_text() == "crash ended\n"
    whole = json.dumps([each.body for each in here.got])
    assert "hunter2hunter2" not in whole
    assert "s3cretpath" not in said + (ended.run_dir / "run.json").read_text()
    annotation = next(line for line in said.splitlines() if line.startswith("::error "))
    assert annotation.startswith("::error file=train.py,line=3,title=rankscope%3A CRASH%2C proven")
    assert "rank 1 raised ValueError" in log.read_text()
    assert "hunter2hunter2" not in annotation + log.read_text()
    update = commands.read_text().splitlines()[-1].split("|")
    assert update[:2] == ["update", "JobId=9"]
    assert update[2].startswith("Comment=rankscope: CRASH, proven")


@pytest.mark.parametrize("verb", ["run", "watch"])
def test_receivers_that_hang_or_refuse_change_neither_outcome_nor_code(rankscope: Rankscope, verb: str) -> None:
    """A command that hangs is ended, and all of them together take no longer than the limit of one."""
    script = rankscope.script("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()")
    own = rankscope.folder / "run"
    with receiver(answer=None) as silent, receiver(answer=500) as broken:
        addresses = (f"{silent.address}/a", f"{broken.address}/b", f"http://127.0.0.1:{free_port()}/c")
        targets = [*addresses, "sleep 1000", "echo no mail here >&2; exit 3"]
        options = [word for target in targets for word in ("--notify", target)]
        start = (*COMMAND, verb, "--run-dir", own, *options)
        job = ("--nproc-per-node=1", script)
        command = (*start, *job) if verb == "run" else (*start, "--", "torchrun", "--standalone", *job)
        ended = rankscope.command(*command, env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}).wait()
        over = time.time()
        assert len(silent.got) == len(broken.got) == 1
    verdict = json.loads((own / "verdict.json").read_text())
    said = ended.err.decode()
    assert (ended.code, verdict["outcome"]) == (0, "ok"), said
    assert over - verdict["ended_at"] < 2 * LIMIT_S
    lines = [line for line in said.splitlines() if "--notify" in line]
    for reason in ("no answer", "answered 500", "refused", "was killed", "ended with code 3 (no mail here)"):
        assert sum(reason in line for line in lines) == 1, said
    assert len(lines) == len(targets)


def test_hang_that_is_only_reported_is_told_while_the_job_waits(rankscope: Rankscope) -> None:
    with receiver() as here:
        started = rankscope.start("--on-hang", "report", "--notify", here.address, rankscope.script(HANGS))
        assert wait_until(lambda: bool(here.got), 60.0), started.err.decode()
        assert started.process.poll() is None
        assert len(started.ranks()) == 2
        os.kill(started.process.pid, signal.SIGINT)
        ended = started.wait()
    found, end = here.got
    assert [found.headers["X-Rankscope-Event"], end.headers["X-Rankscope-Event"]] == ["detected", "ended"]
    assert (found.body["outcome"], found.body["culprits"][0]["rank"]) == ("hang", 1)
    assert end.body["outcome"] == ended.verdict["outcome"]


def test_what_attach_sees_is_told_too(rankscope: Rankscope) -> None:
    with receiver() as here, subprocess.Popen(["sleep", "100"]) as sleeper:
        try:
            ended = rankscope.command(*COMMAND, "attach", "--pid", sleeper.pid, "--notify", here.address).wait()
        finally:
            sleeper.kill()
    (got,) = here.got
    assert (ended.code, got.body["outcome"], got.headers["X-Rankscope-Event"]) == (3, "unknown", "attached")


def test_code_tells_a_scheduler_that_the_same_would_fail_again(rankscope: Rankscope) -> None:
    """A mistake in the program, and not its own code 1."""
    ended = rankscope.run("--retry-codes", rankscope.script("import os\nos.no_such_name\n"), nproc=1)
    assert (ended.code, ended.verdict["exit_codes"]) == (81, {"0": 1})


USES_TRACKERS = """
import os, sys
from torch.utils.tensorboard import SummaryWriter
if os.environ["RANK"] == "0":
    writer = SummaryWriter("board")
    writer.add_scalar("loss", 1.0, 0)
    writer.flush()
    import wandb
    run = wandb.init(project="p", mode="offline")
    run.log({"loss": 1.0})
    if "mlflow" in sys.argv:
        import mlflow
        mlflow.set_tracking_uri("sqlite:///runs.db")
        mlflow.start_run()
    raise ValueError("no such split")
"""


def can_import(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def test_verdict_stands_in_the_records_that_the_program_itself_keeps(rankscope: Rankscope) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with_mlflow = can_import("mlflow")  # one that is only half there counts as none
    ended = rankscope.run(rankscope.script(USES_TRACKERS), *(["mlflow"] if with_mlflow else []))
    assert ended.verdict["cause"] == "exception"
    events = board.EventAccumulator(str(rankscope.folder / "board"))
    events.Reload()
    assert "rankscope/verdict/text_summary" in events.Tags()["tensors"]
    (kept,) = (rankscope.folder / "wandb").glob("offline-run-*/files/rankscope-verdict.json")
    assert json.loads(kept.read_text())["cause"] == "exception"
    if with_mlflow:
        with sqlite3.connect(rankscope.folder / "runs.db") as kept_runs:
            tags = dict(kept_runs.execute("SELECT key, value FROM tags WHERE key LIKE 'rankscope.%'"))
        assert tags["rankscope.cause"] == "exception"
