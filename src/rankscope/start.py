"""The first moment of every command: an interruption is one line, whatever is being imported."""

from __future__ import annotations

import sys

from rankscope.streams import prepare_streams


def main() -> int:
    """Entry point; returns the exit code."""
    try:
        prepare_streams()
        from rankscope.cli import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("rankscope: interrupted\n")
        return 130
