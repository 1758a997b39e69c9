"""The verb `rankscope prepare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rankscope.errors import UsageError
from rankscope.spelling import mended


def prepare_command(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    from rankscope.train.settings import load_config, render_config

    overrides = [*given.override, *([f"data.cache_dir={given.cache_dir}"] if given.cache_dir is not None else [])]
    loaded = load_config("debug" if given.debug else given.preset or "production", given.config, overrides)
    if given.show_config:
        print(render_config(loaded), end="")
        return 0
    if loaded.config.data.source == "random":
        _say("data.source is 'random': there is nothing to prepare")
        return 0
    _need_numpy()
    from rankscope.train.data.preparing import prepare
    from rankscope.train.data.progress import ProgressBar

    bar = ProgressBar(_say)
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
    chosen.add_argument(
        "--preset", metavar="NAME", help="begin with this preset, also beneath --config (default: production)"
    )
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
        raise UsageError(f"{mended(message, self)} (see 'rankscope prepare --help')")


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UsageError("'rankscope prepare' needs the package numpy: pip install 'rankscope[train]'") from None


def _say(line: str) -> None:
    print(f"rankscope: {line}", file=sys.stderr, flush=True)
