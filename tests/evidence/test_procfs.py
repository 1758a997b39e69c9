"""Real processes, each blocked in its own way, and what is seen of them from outside."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.evidence import procfs
from rankscope.evidence.model import ProcessSample
from rankscope.evidence.syscalls import syscall_name

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a small Python program; returns its pid once the program has said that it is there."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, *arguments: str, environment: dict[str, str] | None = None) -> int:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import os, sys, time; os.write(1, b'!')\n" + code, *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def sample_when(pid: int, condition: Callable[[ProcessSample], bool]) -> ProcessSample:
    """The first sample that fulfils the condition, or the last one taken."""
    deadline = time.monotonic() + 10
    while True:
        sample = procfs.sample_process(pid)
        if condition(sample) or time.monotonic() > deadline:
            return sample
        time.sleep(0.01)


def in_call(*names: str) -> Callable[[ProcessSample], bool]:
    """Asleep in one of these: on a busy machine a process may be seen on its way into a call."""
    return lambda sample: sample.state != "R" and sample.syscall is not None and sample.syscall.name in names


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


CONNECT = "import socket; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"


def test_names_the_holder_of_the_flock_that_a_process_waits_for(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pid = start("import fcntl; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)", str(path))
        sample = sample_when(pid, lambda sample: sample.waits_for_lock is not None and in_call("flock")(sample))
    assert sample.waits_for_lock is not None
    assert sample.waits_for_lock.path == str(path)
    assert sample.waits_for_lock.kind == "flock"
    assert sample.waits_for_lock.holder == os.getpid()
    assert sample.syscall is not None
    assert (sample.syscall.name, sample.syscall.target) == ("flock", str(path))


def test_names_the_holder_of_a_posix_lock_wanted_by_another_thread(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "posix.lock"
    code = (
        "import fcntl, threading; f = open(sys.argv[1], 'w')\n"
        "threading.Thread(target=fcntl.lockf, args=(f, fcntl.LOCK_EX), daemon=True).start()\n"
        "time.sleep(60)"
    )
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        pid = start(code, str(path))
        lock = sample_when(pid, lambda sample: sample.waits_for_lock is not None).waits_for_lock
    assert lock is not None
    assert (lock.path, lock.kind, lock.holder) == (str(path), "posix", os.getpid())


def test_a_process_that_holds_a_lock_waits_for_none(tmp_path: Path) -> None:
    with (tmp_path / "own.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert procfs.sample_process(os.getpid()).waits_for_lock is None


def test_tells_the_peer_of_a_receive(start: Start, server: socket.socket) -> None:
    port = server.getsockname()[1]
    pid = start(CONNECT + "s.recv(1)", str(port))
    peer, address = server.accept()
    with peer:
        sample = sample_when(pid, in_call("recvfrom"))
    assert sample.state == "S"
    assert sample.syscall is not None
    assert sample.syscall.name == "recvfrom"
    assert sample.syscall.target == f"tcp 127.0.0.1:{address[1]} -> 127.0.0.1:{port}"
    assert sample.sockets == (f"127.0.0.1:{port}",)


def test_tells_the_peer_of_a_poll(start: Start, server: socket.socket) -> None:
    port = server.getsockname()[1]
    # A timeout on the socket makes Python poll before it receives.
    pid = start(CONNECT + "s.settimeout(60); s.recv(1)", str(port))
    peer, _ = server.accept()
    with peer:
        syscall = sample_when(pid, in_call("poll", "ppoll")).syscall
    assert syscall is not None
    assert syscall.target is not None
    assert syscall.target.endswith(f"-> 127.0.0.1:{port}")


def test_tells_the_peer_of_a_select(start: Start, server: socket.socket) -> None:
    port = server.getsockname()[1]
    pid = start(CONNECT + "import select; select.select([s], [], [])", str(port))
    peer, _ = server.accept()
    with peer:
        syscall = sample_when(pid, in_call("select", "pselect6")).syscall
    assert syscall is not None
    assert syscall.target is not None
    assert syscall.target.endswith(f"-> 127.0.0.1:{port}")


def test_tells_what_an_epoll_watches(start: Start, server: socket.socket) -> None:
    port = server.getsockname()[1]
    code = CONNECT + "import select; e = select.epoll(); e.register(s, select.EPOLLIN); e.poll(60)"
    pid = start(code, str(port))
    peer, _ = server.accept()
    with peer:
        syscall = sample_when(pid, in_call("epoll_wait", "epoll_pwait")).syscall
    assert syscall is not None
    assert syscall.target is not None
    assert syscall.target.startswith("epoll of tcp 127.0.0.1:")
    assert syscall.target.endswith(f"-> 127.0.0.1:{port}")


def test_tells_the_path_of_a_unix_socket_that_listens(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); s.accept()"
    syscall = sample_when(start(code, path), in_call("accept", "accept4")).syscall
    assert syscall is not None
    assert syscall.target == f"unix {path}"


def test_sleep_is_a_nanosleep_without_descriptor(start: Start) -> None:
    sample = sample_when(start("time.sleep(60)"), in_call("clock_nanosleep", "nanosleep", "select"))
    assert sample.syscall is not None
    assert sample.syscall.name in {"clock_nanosleep", "nanosleep", "select"}
    assert (sample.syscall.fd, sample.syscall.target) == (None, None)


def test_wait_for_a_child_names_the_child(start: Start) -> None:
    pid = start("import subprocess; subprocess.Popen(['sleep', '60']).wait()")
    syscall = sample_when(pid, in_call("wait4", "waitid")).syscall
    (child,) = procfs.descendants(pid)
    assert syscall is not None
    assert (syscall.name, syscall.target) == ("wait4", f"process {child}")
    os.kill(child, signal.SIGKILL)


def test_a_stopped_process_is_in_state_t(start: Start) -> None:
    pid = start("time.sleep(60)")
    os.kill(pid, signal.SIGSTOP)
    assert sample_when(pid, lambda sample: sample.state == "T").state == "T"
    assert procfs.pulse(pid).state == "T"


def test_reading_a_fifo_tells_its_path(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "metrics"
    os.mkfifo(fifo)
    pid = start("os.read(os.open(sys.argv[1], os.O_RDWR), 1)", str(fifo))
    syscall = sample_when(pid, in_call("read")).syscall
    assert syscall is not None
    assert (syscall.name, syscall.target) == ("read", str(fifo))


def test_opening_a_fifo_tells_its_path_even_when_relative(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics")
    pid = start("os.chdir(sys.argv[1]); os.open('metrics', os.O_RDONLY)", str(tmp_path))
    syscall = sample_when(pid, lambda s: s.syscall is not None and str(s.syscall.target).endswith("metrics")).syscall
    assert syscall is not None
    assert syscall.name in {"open", "openat"}
    assert syscall.target == str(tmp_path / "metrics")


def test_reading_a_pipe_is_called_a_pipe(start: Start) -> None:
    syscall = sample_when(start("os.read(os.pipe()[0], 1)"), in_call("read")).syscall
    assert syscall is not None
    assert syscall.target == "pipe"


def test_descendants_come_children_first_by_both_ways(start: Start) -> None:
    inner = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    pid = start(f"import subprocess; subprocess.Popen([sys.executable, '-S', '-c', {inner!r}]).wait()")
    deadline = time.monotonic() + 10
    while len(procfs.descendants(pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    child, grandchild = procfs.descendants(pid)
    assert procfs._descendants_by_scan(pid) == [child, grandchild]
    assert procfs.parent(grandchild) == child
    assert procfs.parent(child) == pid
    os.kill(grandchild, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)


def test_a_pulse_counts_the_work_of_children(start: Start) -> None:
    pid = start("import subprocess; subprocess.Popen([sys.executable, '-S', '-c', 'while True: pass']).wait()")
    deadline = time.monotonic() + 10
    while (now := procfs.pulse(pid)).cpu_s < 0.3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert now.cpu_s >= 0.3
    assert now.state == "S"
    for child in procfs.descendants(pid):
        os.kill(child, signal.SIGKILL)


def test_a_pulse_counts_bytes_and_memory(start: Start) -> None:
    code = (
        "f = open('/dev/null', 'wb'); f.write(b'x' * 5_000_000); f.flush()\nblock = b'y' * 50_000_000; time.sleep(60)"
    )
    pid = start(code)
    sample = sample_when(pid, lambda s: s.write_bytes >= 5_000_000 and s.rss_bytes >= 50_000_000)
    beat = procfs.pulse(pid)
    assert sample.write_bytes >= 5_000_000
    assert beat.io_bytes >= sample.read_bytes + sample.write_bytes
    assert beat.rss_bytes >= 50_000_000


def test_a_process_that_is_gone_is_a_lookup_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    for function in (
        procfs.pulse,
        procfs.sample_process,
        procfs.parent,
        procfs.start_time,
        procfs.command_line,
    ):
        with pytest.raises(ProcessLookupError):
            function(process.pid)
    with pytest.raises(ProcessLookupError):
        procfs.environment(process.pid)
    assert procfs.descendants(process.pid) == []


def test_a_zombie_still_answers() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.pulse(process.pid).state == "Z"
    assert procfs.sample_process(process.pid).state == "Z"
    assert procfs.command_line(process.pid) == "[true]"
    process.wait()


def test_limits_and_open_files_are_counted(start: Start) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77)); n = os.dup(1); time.sleep(60)"
    sample = sample_when(start(code), lambda s: s.open_files_limit == 77 and (s.open_files or 0) >= 4)
    assert sample.open_files_limit == 77
    assert sample.open_files == 4
    assert sample.threads == 1


def test_command_and_environment_hide_secrets_and_leave_out_the_rest(start: Start) -> None:
    given = {
        "WANDB_API_KEY": "topsecret",
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "LS_COLORS": "no",
        "HF_TOKEN": "t",
    }
    pid = start("time.sleep(60)", "--token", "abc def", "--lr", "0.1", environment=given)
    command = procfs.command_line(pid)
    assert "abc" not in command
    assert "def" not in command
    assert command.endswith("--token *** --lr 0.1")
    seen = procfs.environment(pid)
    assert seen["WANDB_API_KEY"] == seen["HF_TOKEN"] == "***"
    assert (seen["NCCL_DEBUG"], seen["RANK"]) == ("INFO", "3")
    assert "LS_COLORS" not in seen


def test_a_long_command_is_cut(start: Start) -> None:
    command = procfs.command_line(start("time.sleep(60)", "x" * 1000))
    assert len(command) == procfs.COMMAND_LENGTH
    assert command.endswith("…")


def test_the_start_time_is_when_it_was_started(start: Start) -> None:
    before = time.time()
    pid = start("time.sleep(60)")
    assert before - 0.1 <= procfs.start_time(pid) <= time.time() + 0.1


@pytest.mark.parametrize(
    ("number", "machine", "name"),
    [(0, "x86_64", "read"), (63, "aarch64", "read"), (202, "x86_64", "futex"), (98, "aarch64", "futex")],
)
def test_system_calls_have_names_on_both_machines(number: int, machine: str, name: str) -> None:
    assert syscall_name(number, machine) == name


def test_unknown_system_calls_keep_their_number() -> None:
    assert syscall_name(99999) == "syscall 99999"
    assert syscall_name(0, "riscv64") == "syscall 0"


def test_the_main_threads_own_work_is_told_apart_from_that_of_others() -> None:
    def work() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    def looked_at() -> tuple[float, float]:
        sample = procfs.sample_process(os.getpid())
        assert sample.main_cpu_s is not None
        return sample.main_cpu_s, sample.cpu_s

    start_main, _ = looked_at()
    work()
    worked_main, worked = looked_at()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    _, beside = looked_at()
    assert worked_main - start_main >= 0.05
    assert beside - worked >= 0.03  # ticks of 10 ms
