"""Twelve planted defects: `rankscope check` names each of them, by the cause that a job would have died of."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import COMMAND
from rankscope.checks import imports, limits, network, storage
from rankscope.checks.locks import stale_locks
from rankscope.checks.model import Findings
from rankscope.checks.world import stray_variables


def causes(found: Findings) -> list[str]:
    return [flaw.cause for flaw in found.flaws]


def the_flaw(found: Findings, cause: str) -> str:
    matching = [flaw for flaw in found.flaws if flaw.cause == cause]
    assert matching, found
    assert all(flaw.fix for flaw in matching)
    return matching[0].what


def test_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        what = the_flaw(network.master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}), "port-in-use")
    assert str(port) in what
    free = network.master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    assert free.flaws == ()


def test_master_that_does_not_resolve_is_named() -> None:
    found = network.master({"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29500"})
    assert "no-such-host.invalid" in the_flaw(found, "address-unreachable")


def test_tiny_shared_memory_is_named(tmp_path: Path) -> None:
    command = [*COMMAND, "check", "storage", "--json"]
    mount = "mount -t tmpfs -o size=16m none /dev/shm && exec "
    shell = ["unshare", "--mount", "sh", "-c", mount + " ".join(command)]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("this user may not make a mount namespace for a small /dev/shm")
    ended = subprocess.run(shell, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    report = json.loads(ended.stdout)
    flaws = {flaw["cause"]: flaw for step in report["steps"] for flaw in step["flaws"]}
    assert (ended.returncode, report["ok"], list(flaws)) == (1, False, ["shm-exhausted"])
    assert "16 MiB" in flaws["shm-exhausted"]["what"]


def test_low_limit_of_open_files_is_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert "256" in the_flaw(limits.check_limits(), "fd-exhausted")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "fd-exhausted" not in causes(limits.check_limits())


def test_missing_package_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nimport beside\nimport json, no_such_package.inner\ntry:\n    import optional_one\n")
    script.write_text(script.read_text() + "except ImportError:\n    optional_one = None\n")
    (tmp_path / "beside.py").write_text("")
    modules = imports.imported_by(script)
    assert modules == ["no_such_package"]
    assert "no_such_package" in the_flaw(imports.check_imports(modules, imports.ImportLimits()), "import-failed")


def test_import_that_eats_memory_is_stopped_and_named(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("import time\nheld = b'x' * (300 << 20)\ntime.sleep(60)\n")
    limits_ = imports.ImportLimits(seconds=50.0, bytes=100 << 20)
    begun = time.monotonic()
    what = the_flaw(imports.check_imports(["greedy"], limits_, tmp_path), "out-of-memory-host")
    assert "greedy" in what
    assert "100 MiB" in what
    assert time.monotonic() - begun < 45.0


def test_import_that_never_ends_is_stopped_and_named(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)\n")
    found = imports.check_imports(["endless"], imports.ImportLimits(seconds=0.3), tmp_path)
    assert "endless" in the_flaw(found, "blocked-call")


def test_slow_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow_sync(_descriptor: int) -> None:
        now[0] += 2.0

    monkeypatch.setattr(os, "fsync", slow_sync)
    found = storage.write_speed(tmp_path)
    assert "MB/s" in the_flaw(found, "slow-rank")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"])
def test_cache_that_cannot_be_written_is_named(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").write_text("in the way")
    environment = {"HOME": str(tmp_path), variable: str(tmp_path / "file" / "cache")}
    found = storage.check_storage(tmp_path / "runs", environment, tmp_path)
    assert causes(found) == ["exception"]
    assert variable in the_flaw(found, "exception")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "torch_extensions" / "py311_cpu" / "fused"
    folder.mkdir(parents=True)
    return tmp_path / "torch_extensions"


def test_lock_file_that_nobody_holds_is_named(cache: Path) -> None:
    lock = cache / "py311_cpu" / "fused" / "lock"
    lock.write_text("")
    assert str(lock) in the_flaw(stale_locks([cache]), "lock-wait")
    with lock.open():  # as a process does that builds there now
        assert stale_locks([cache]).flaws == ()


def test_lock_file_of_an_ended_process_is_named(cache: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (cache / "model.lock").write_text(f"{ended.pid}\n{socket.gethostname()}\n")
    (cache / "ours.lock").write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
    (cache / "elsewhere.lock").write_text(f"{ended.pid}\nanother-host\n")
    found = stale_locks([cache])
    assert causes(found) == ["lock-wait"]
    assert "model.lock" in found.flaws[0].what


def test_lock_held_by_a_stopped_process_is_named(cache: Path) -> None:
    lock = cache / "hub.lock"
    code = "import fcntl,sys,time;f=open(sys.argv[1],'w');fcntl.flock(f,fcntl.LOCK_EX);print('held',flush=True)"
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", code + ";time.sleep(600)", str(lock)], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert stale_locks([cache]).flaws == ()
        holder.send_signal(signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)
        assert str(holder.pid) in the_flaw(stale_locks([cache]), "lock-wait")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close() if holder.stdout is not None else None


def test_world_size_without_ranks_is_named() -> None:
    assert "WORLD_SIZE=4" in the_flaw(stray_variables({"WORLD_SIZE": "4"}), "rank-missing")
    assert stray_variables({"WORLD_SIZE": "4", "RANK": "0"}).flaws == ()
    assert stray_variables({}).flaws == ()
