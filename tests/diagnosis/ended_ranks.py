"""Ranks that ended, with the words that gloo, NCCL and torch really print."""

from __future__ import annotations

from typing import Any

import factories as make

from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.endings import explain_endings
from rankscope.evidence.model import RankEvidence

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:62166. Check the remote worker."
RESET = f"{GLOO}pair.cc:537] Read error [127.0.0.1]:45192: Connection reset by peer."
TIMED_OUT = f"{GLOO}unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 4. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
)
WATCHDOG = (
    "[rank1]:[E] [PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
)
ALL_REDUCE = make.lib("torch/distributed/distributed_c10d.py", "all_reduce")
STORE = make.lib("torch/distributed/rendezvous.py", "_create_c10d_store")


def failed(number: int, kind: str, message: str, *frames: Any, at: float = make.NOW - 1, **fields: Any) -> RankEvidence:
    seen = frames or (make.frame("train.py", 10 + number, "step"),)
    fields.setdefault("exit", make.ended(1, at + 0.5))
    return make.rank(number, exceptions=make.raised(kind, message, *seen, at=at), **fields)


def victim(number: int, message: str = CLOSED, **fields: Any) -> RankEvidence:
    return failed(number, "RuntimeError", message, ALL_REDUCE, make.frame("train.py", 61, "train"), **fields)


def origin(*ranks: RankEvidence, **fields: Any) -> Finding:
    finding = explain_endings(make.evidence(*ranks, **fields)).origin
    assert finding is not None
    return finding
