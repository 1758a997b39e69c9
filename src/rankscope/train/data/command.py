"""The verb `rankscope prepare`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rankscope.errors import UsageError


def prepare_command(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    from rankscope.train.settings import load_config, render_config

    overrides = [*given.override, *([f"data.cache_dir={given.cache_dir}"] if given.cache_dir else [])]
    loaded = load_config("debug" if given.debug else given.preset, given.config, overrides)
    if given.show_config:
        print(render_config(loaded), end="")
        return 0
    if loaded.config.data.source == "random":
        _say("data.source is 'random': there is nothing to prepare")
        return 0
    _need_numpy()
    from rankscope.train.data.preparing import prepare

    bar = _Bar(sys.stderr.isatty())
    try:
        prepare(loaded.config, bar.say, bar.show)
    except KeyboardInterrupt:
        bar.say("stopped; nothing unfinished was kept")
        return 130
    finally:
        bar.clear()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rankscope prepare",
        description="Turn the text of a configuration into a dataset that all ranks share: flat token files with a "
        "manifest under ./cache/datasets/<key>/. Done once; `rankscope train` does it by itself where it was not.",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--preset", metavar="NAME", help="begin with this preset")
    chosen.add_argument("--debug", action="store_true", help="the same as --preset debug")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration: JSON with // comments, YAML or TOML"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="one value, over preset and file; may be repeated: --override data.tokenizer=bytes",
    )
    parser.add_argument("--cache-dir", metavar="DIR", help="where datasets are kept; the same as data.cache_dir")
    parser.add_argument(
        "--show-config", action="store_true", help="print the configuration and where each value came from, and end"
    )
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see 'rankscope prepare --help')")


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UsageError("'rankscope prepare' needs the package numpy: pip install 'rankscope[train]'") from None


def _say(line: str) -> None:
    print(f"rankscope: {line}", file=sys.stderr, flush=True)


class _Bar:
    """A line at the bottom of a terminal that shows how far it is; elsewhere, nothing."""

    WIDTH = 30
    EVERY_S = 0.1

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._began = time.monotonic()
        self._drawn: float | None = None

    def say(self, line: str) -> None:
        self.clear()
        _say(line)

    def show(self, done: int, total: int, tokens: int) -> None:
        now = time.monotonic()
        if self._drawn is None:
            self._began = min(self._began, now)
        elif now - self._drawn < self.EVERY_S:
            return
        self._drawn = now
        if not self._is_terminal:
            return
        share = min(1.0, done / total) if total else 1.0
        speed = done / 1e6 / max(now - self._began, 1e-3)
        filled = round(share * self.WIDTH)
        left = (total - done) / 1e6 / speed if speed else 0.0
        sys.stderr.write(
            f"\r\033[K{'█' * filled}{'░' * (self.WIDTH - filled)} {share:4.0%}  {tokens:,} tokens  {speed:.1f} MB/s  "
            f"{left:.0f} s left"
        )
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_terminal and self._drawn is not None:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
