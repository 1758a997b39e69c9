"""The first word of torch's watchdog, in what a rank writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.launch.watchdog_words import WatchdogWords, gives_up

TIMEOUT = (
    "[rank0]:[E1116 15:24:42.000754589 ProcessGroupNCCL.cpp:683] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=6000) ran for 6001 milliseconds"
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (TIMEOUT, True),
        ("[Rank 2] Received a dump signal due to a collective timeout from rank 0 and we will try to dump", True),
        ("ProcessGroupNCCL.cpp:1475 Heartbeat monitor timed out! Process will be terminated", True),
        ("loss 0.3, no timeout in sight", False),
        ("NCCL communicator was aborted on rank 1", False),
    ],
)
def test_only_the_watchdogs_own_words_count(line: str, said: bool) -> None:
    assert gives_up(("step 1", line)) is said


def test_each_line_is_read_once() -> None:
    written: dict[str, Any] = {"at": None, "lines": ()}
    pump: Any = SimpleNamespace(
        last_output_at=lambda _key: written["at"], tail=lambda _key, _count: tuple(written["lines"])
    )
    rank: Any = SimpleNamespace(rank=0, local_rank=0)
    words = WatchdogWords()
    assert not words.new_word([rank], pump)
    written.update(at=1.0, lines=("step 1",))
    assert not words.new_word([rank], pump)
    written.update(at=2.0, lines=("step 1", TIMEOUT))
    assert words.new_word([rank], pump)
    assert not words.new_word([rank], pump)
