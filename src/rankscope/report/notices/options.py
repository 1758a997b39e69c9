"""`--notify`, the same for every verb that has it."""

from __future__ import annotations

import argparse

from rankscope.report.notices.notifier import LIMIT_S
from rankscope.report.notices.targets import parse_target


def add_notify(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--notify",
        type=parse_target,
        action="append",
        default=[],
        metavar="URL|COMMAND",
        help="whom to tell how it ended, and at once when a hang or bad numbers are found and the job goes on: an "
        "address gets the verdict as JSON (Slack, Discord and Teams a message, otlp+http://... an event of "
        "OpenTelemetry), a command gets it on its standard "
        f"input. May be repeated. Within {LIMIT_S:g} s, and without any say in the outcome",
    )
