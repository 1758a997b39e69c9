"""Checksums of replicas are written only where the same step is the same moment on all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.probe.replicas import CHECKSUM_EVERY, Replica, checksums


class Wrapped(nn.Module):
    """What the probe reads of a DistributedDataParallel."""

    def __init__(self, *, joins: bool) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)
        self.process_group: Any = SimpleNamespace(group_name="0")
        self._join_config = SimpleNamespace(enable=joins)


@pytest.mark.parametrize(("joins", "written"), [(False, 1), (True, 0)])
def test_inside_of_join_steps_are_no_common_clock(joins: bool, written: int) -> None:
    replica = Replica(wrapped := Wrapped(joins=joins))
    assert len(list(checksums(torch, [replica], CHECKSUM_EVERY))) == written
    wrapped._join_config.enable = False
    assert len(list(checksums(torch, [replica], 2 * CHECKSUM_EVERY))) == written, "steps stay apart once they were"
