"""The kernel's log and counters."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankscope.evidence import kernel

RECORDS = [
    b"6,1,1000000,-;eth0: link up\n",
    b"3,2,2000000,-;Out of memory: Killed process 99 (python) total-vm:1kB\n SUBSYSTEM=memory\n",
    b"4,3,50000000,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n",
    b"6,4,51000000,-;python[77]: segfault at 0 ip 0 sp 0 error 4 in libc.so\n",
    b"6,5,52000000,-;usb 1-1: new device\n",
    b"not a record",
]


def test_keeps_telling_lines_since_the_job_began() -> None:
    lines = kernel.telling_lines(RECORDS, since=1040.0, started=1000.0)
    assert lines == (
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "python[77]: segfault at 0 ip 0 sp 0 error 4 in libc.so",
    )
    assert len(kernel.telling_lines(RECORDS, since=0.0, started=1000.0)) == 3


def test_keeps_only_the_newest() -> None:
    many = [b"6,%d,1,-;Killed process %d" % (number, number) for number in range(500)]
    lines = kernel.telling_lines(many, since=0.0, started=0.0)
    assert len(lines) == kernel.MAX_LINES
    assert lines[-1] == "Killed process 499"


def test_the_real_log_gives_lines_or_a_reason_without_waiting() -> None:
    began = time.monotonic()
    answer = kernel.kernel_lines(since=0.0)
    assert time.monotonic() - began < 5
    if isinstance(answer, str):
        assert "cannot be read" in answer
    else:
        assert all(answer)
    assert kernel.kernel_lines(since=time.time() + 3600) in {(), answer}


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log may not be read here")
def test_the_real_log_holds_records() -> None:
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        records = list(kernel._records(log))
    finally:
        os.close(log)
    assert all(b";" in record for record in records)


def test_counts_the_kills_of_the_own_group_on_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_CGROUPS", tmp_path)
    membership = "4:cpu,memory:/job/7\n0::/\n"
    (tmp_path / "memory" / "job" / "7").mkdir(parents=True)
    (tmp_path / "memory" / "job" / "7" / "memory.oom_control").write_text("under_oom 0\noom_kill 3\n")
    assert kernel.read_oom_kills(membership) == 3
    (tmp_path / "memory.events").write_text("oom 5\noom_kill 4\noom_group_kill 0\n")
    assert kernel.read_oom_kills("0::/not/seen/from/here\n") == 4
    assert kernel.read_oom_kills("1:cpu:/\n") is None


def test_the_real_count_is_a_number_where_there_is_one() -> None:
    count = kernel.oom_kill_count()
    assert count is None or count >= 0


def test_memory_is_what_the_machine_has() -> None:
    total, available = kernel.memory()
    assert total == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert 0 < available <= total
