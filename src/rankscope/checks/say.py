"""The words of a check: one line a step, and under it what is wrong and what to do."""

from __future__ import annotations

import shutil
import sys
import textwrap

from rankscope.checks.model import CheckReport, StepResult
from rankscope.report.plain_text import plain
from rankscope.report.terminal import use_color

_COLOR = {"pass": "\x1b[32m", "fail": "\x1b[1;31m", "skip": "\x1b[33m"}


def ended(done: StepResult) -> str:
    """What is shown the moment a step has ended."""
    word = f"{_COLOR[done.status]}{done.status:<4}\x1b[0m" if use_color(sys.stdout) else f"{done.status:<4}"
    lines = [f"{word}  {done.step:<8} {done.seconds:5.1f} s"]
    for flaw in done.flaws:
        lines += _wrapped(f"{flaw.cause}: {flaw.what}", "      ")
        lines += _wrapped(f"fix: {flaw.fix}", "        ")
    if done.skipped is not None:
        lines += _wrapped(done.skipped, "      ")
    lines += [line for fact in done.facts for line in _wrapped(fact, "      ")]
    return "\n".join(lines)


def summary(report: CheckReport) -> str:
    failed = [step.step for step in report.steps if step.status == "fail"]
    skipped = [step.step for step in report.steps if step.status == "skip"]
    passed = len(report.steps) - len(failed) - len(skipped)
    tail = f", skipped: {', '.join(skipped)}" if skipped else ""
    if failed:
        return f"rankscope: {report.host} is NOT fit: {', '.join(failed)} failed, {passed} passed{tail}"
    return f"rankscope: {report.host} is fit: {passed} steps passed in {report.seconds:.0f} s{tail}"


def _wrapped(text: str, indent: str) -> list[str]:
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))
    return textwrap.wrap(
        plain(text), width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )
