"""The lines a rank says. The launcher puts the rank before each: `GPU0:INFO | [GPU 0] Step [0/100] | ...`."""

from __future__ import annotations

import os
import sys


class Voice:
    def __init__(self, name: str) -> None:
        self._name = name
        """`GPU 0`."""

    def info(self, text: str) -> None:
        self._say("INFO", text)

    def warning(self, text: str) -> None:
        self._say("WARNING", text)

    def memory(self, mark: str, gpu_bytes: tuple[int, int] | None = None) -> None:
        """`gpu_bytes`: used by this process now and at its highest."""
        text = f"MEM:{mark} | host {resident_bytes() / 2**30:.2f} GiB"
        if gpu_bytes is not None:
            text += f" | GPU {gpu_bytes[0] / 2**30:.2f} GiB, highest {gpu_bytes[1] / 2**30:.2f} GiB"
        self.info(text)

    def _say(self, level: str, text: str) -> None:
        # One write a line: lines of several threads do not mix.
        sys.stdout.write(f"{level} | [{self._name}] {text}\n")
        sys.stdout.flush()


def step_line(step: int, steps: int, loss: float, rate: float, norm: float, eta_s: float | None) -> str:
    return f"Step [{step}/{steps}] | Loss: {loss:.4f} | LR: {rate:.2e} | Grad Norm: {norm:.4f} | ETA: {clock(eta_s)}"


def clock(seconds: float | None) -> str:
    """`5:30`, `1:05:30`, `2 days 1:05:30`."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    short = f"{hours}:{minutes:02}:{left:02}" if hours or days else f"{minutes}:{left:02}"
    return f"{days} day{'s' if days > 1 else ''} {short}" if days else short


def resident_bytes() -> int:
    """Memory of this process on the host."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ProgressBar:
    """One line that is written over, on standard error."""

    WIDTH = 24

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._shown = False

    def show(self, done: int, loss: float, tokens_per_s: float, eta_s: float | None) -> None:
        filled = self.WIDTH * done // self._steps
        bar = "█" * filled + "░" * (self.WIDTH - filled)
        text = f"{bar} {done}/{self._steps}  loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  ETA {clock(eta_s)}"
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._shown = False
