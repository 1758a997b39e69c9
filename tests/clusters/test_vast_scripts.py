"""Vast: the scripts that run on the rented machine keep the exit code, and give the machine back by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vast_place import Place
from vast_server import VastServer

from conftest import COMMAND, Rankscope, wait_until
from rankscope.clusters.vast.remote import Remote, environment_file
from rankscope.clusters.vast.scripts import ONSTART_LIMIT, job_script, onstart, watch_script
from rankscope.errors import UsageError


@pytest.fixture
def server() -> Iterator[VastServer]:
    made = VastServer()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_failed_setup_is_the_exit_code_and_the_job_is_not_started(place: Place) -> None:
    shutil.copytree(place.work, place.machine / "work")
    script = job_script(place.plan(0, setup="echo first\n(exit 41)\necho never"))
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, (place.machine / "exit_code").read_text()) == (41, "41\n")
    assert ended.stdout == "first\nrankscope: the set-up failed with exit code 41; the job was not started\n"


def test_variables_go_over_the_connection_only(place: Place) -> None:
    given = environment_file(["TOKEN", "OTHER"], {"TOKEN": "it's a $secret", "OTHER": "x"})
    Remote("vast.invalid", 22, str(place.machine)).send_file("environment", given)
    assert ((place.machine / "environment").stat().st_mode & 0o777) == 0o600
    shutil.copytree(place.work, place.machine / "work")
    place.tool("python3", '#!/bin/bash\n[[ $1 == -c ]] || printf "%s" "$TOKEN"\n')
    script = job_script(place.plan())
    assert "secret" not in script
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("it's a $secret")
    for name in ("NOT_SET", "a b"):
        with pytest.raises(UsageError, match="--env"):
            environment_file([name], {})


@pytest.mark.parametrize("what", ["ended and fetched", "ended, nobody came", "never started", "killed"])
def test_watch_gives_the_machine_back_by_itself(place: Place, server: VastServer, what: str) -> None:
    limits: dict[str, object] = {"start_limit_s": 0.0 if what == "never started" else 600.0, "fetch_limit_s": 0.0}
    if what == "ended and fetched":
        limits["fetch_limit_s"] = 600.0
    plan = place.plan(0, **limits)
    place.machine.mkdir()
    if what != "never started":
        ended = subprocess.Popen(["true"])
        ended.wait()
        (place.machine / "pid").write_text(str(ended.pid))
    if what.startswith("ended"):
        (place.machine / "exit_code").write_text("0\n")
    if what == "ended and fetched":
        (place.machine / "fetched").write_text("")
    server.instances[1011] = {}
    server.fail_destroys = 1
    place.tool("python3", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    own = {"CONTAINER_ID": "1011", "CONTAINER_API_KEY": "key-of-machine-1011", "VAST_URL": server.url}
    script = watch_script(plan, period_s=0.05, retry_s=0.05)
    watch = subprocess.Popen(["bash", "-c", script], env={**os.environ, **own}, stderr=subprocess.DEVNULL)
    try:
        assert server.destroyed.wait(30.0)
        assert watch.wait(60.0) == 0
    finally:
        watch.kill()
        watch.wait()
    assert server.instances == {}


def test_watch_leaves_a_machine_whose_job_runs_alone(place: Place, server: VastServer) -> None:
    plan = place.plan(start_limit_s=0.0, fetch_limit_s=0.0)
    place.machine.mkdir()
    (place.machine / "pid").write_text(str(os.getpid()))
    asked = place.folder / "slept"
    place.tool("sleep", f'#!/bin/bash\necho >>{asked}\nexec /bin/sleep "$@"\n')
    watch = subprocess.Popen(["bash", "-c", watch_script(plan, period_s=0.02)])
    try:
        assert wait_until(lambda: asked.exists() and len(asked.read_text()) > 8, 60.0)
        assert watch.poll() is None
    finally:
        watch.kill()
        watch.wait()
    assert server.requests == []


def test_onstart_fits_what_vast_takes_and_returns_at_once(place: Place) -> None:
    text = onstart(place.plan(folder="/workspace/rankscope"))
    assert text is not None
    assert len(text) < ONSTART_LIMIT
    assert onstart(place.plan(auto_shutdown=False)) is None
    small = onstart(place.plan())
    assert small is not None
    place.tool("setsid", '#!/bin/bash\necho "$*" >"' + str(place.folder) + '/watched"\n')
    subprocess.run(["bash", "-c", small], check=True, timeout=60)
    assert wait_until((place.folder / "watched").exists, 30.0)
    assert (place.machine / "watch.sh").read_text() == watch_script(place.plan())


TRAINER = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(3)
dist.all_reduce(value)
print("sum", value.tolist(), flush=True)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 77])
def test_produced_script_with_a_real_trainer_ends_as_the_trainer_does(
    rankscope: Rankscope, tmp_path: Path, code: int
) -> None:
    work = tmp_path / "machine/work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(TRAINER)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin/python3").chmod(0o755)
    words = ["--num-gpus", 1, "--remote-folder", tmp_path / "machine", "--workdir", work, "--dry-run"]
    told = rankscope.command(*COMMAND, "launch", "vast", *words, "--", "train.py", code).wait(60.0)
    text = told.out.decode()
    script = text[text.index("job.sh:\n") + 8 :]
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    ended = rankscope.command("bash", "-c", script, env=path).wait(150.0)
    shown = ended.out.decode()
    assert ended.code == code, shown + ended.err.decode()
    assert (tmp_path / "machine/exit_code").read_text() == f"{code}\n"
    assert "sum [1.0, 1.0, 1.0]" in shown
    assert ("completed successfully" in shown) == (code == 0)
    assert (tmp_path / "machine/run/verdict.json").exists()
