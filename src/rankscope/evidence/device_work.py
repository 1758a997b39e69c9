"""What a GPU did for a moment, as its counters tell: the difference between computing and waiting in a kernel."""

from __future__ import annotations

import msgspec

_WORKS = 0.002
"""Of arithmetic units or of memory bandwidth. A job that trained showed 0.12 and 0.019."""
_NO_ARITHMETIC = 0.00001
_NO_TRAFFIC = 0.0005
"""Ranks that hung in NCCL showed up to 0.000001 and 0.0001; a healthy job of a tiny model 0.00004 and 0.00016: of such
a one nobody can tell."""
_WAITERS_ALONE = 0.4
"""Share of the SMs that waiting kernels of NCCL fill by themselves: up to 32 blocks a communicator, of some 130."""
_POWER_WORKS = 0.5
_POWER_STANDS = 0.25
"""Of the power limit: the H200 that hung drew 126 of 700 W, the one that trained a small model 222 W."""
_MEMORY_WORKS = 0.05


class DeviceWork(msgspec.Struct, frozen=True, gc=False):
    """Shares from 0 to 1 over the time of the sample; None where the device does not tell. All processes together."""

    sm: float | None
    """Multiprocessors with a kernel on them, be it one that only waits."""
    tensor: float | None
    fp32: float | None
    dram: float | None
    power_w: float | None
    memory_util: float | None
    """Time in which device memory was read or written at all, as NVML's utilisation says."""
    counters: bool
    """The first four are GPM's counters (Hopper and later)."""
    fp16: float | None = None
    fp64: float | None = None
    power_limit_w: float | None = None

    def working(self) -> bool | None:
        """Whether the device does real work: arithmetic or memory traffic, not just a kernel that is there. None where
        this cannot be told. Without counters power and memory traffic are a weaker sign of the same."""
        return self._by_counters() if self.counters else self._by_power()

    def _by_counters(self) -> bool | None:
        arithmetic = max(
            (share for share in (self.tensor, self.fp32, self.fp16, self.fp64) if share is not None), default=0.0
        )
        if arithmetic >= _WORKS or (self.dram or 0.0) >= _WORKS:
            return True
        if self.fp32 is None or self.dram is None or arithmetic >= _NO_ARITHMETIC or self.dram >= _NO_TRAFFIC:
            return None
        # Integer kernels move little memory and no floating point; waiting ones never fill the whole device.
        return None if self.sm is not None and self.sm >= _WAITERS_ALONE else False

    def _by_power(self) -> bool | None:
        drawn = self.power_w / self.power_limit_w if self.power_w is not None and self.power_limit_w else None
        if (self.memory_util or 0.0) >= _MEMORY_WORKS or (drawn or 0.0) >= _POWER_WORKS:
            return True
        if self.memory_util == 0.0 and drawn is not None and drawn < _POWER_STANDS:
            return False
        return None
