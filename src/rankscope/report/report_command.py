"""`rankscope report`: the incident page, or the same in another form, from whatever `diagnose` can read."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.errors import UsageError
from rankscope.evidence.readers.run_folder import is_run_folder
from rankscope.private_files import write_private
from rankscope.report.again import tell_refused, verdict_on
from rankscope.report.plain_text import short_path
from rankscope.report.words.languages import add_lang, chosen_language
from rankscope.spelling import mended

if TYPE_CHECKING:
    from rankscope.report.views.incident import Incident

_DESCRIPTION = """\
Make the page of an incident again, with today's rules: verdict, source lines, merged stacks, calls side by side, who
waits for whom, time, output. One file, which asks nobody for anything. PATH is whatever `rankscope diagnose` takes.

  html         report.html (the default): in the folder of the run, else in this one
  md           markdown, to be pasted into an issue
  text, json   the verdict as `rankscope diagnose` prints it
  trace        rank x time and collectives, for Perfetto or chrome://tracing
  speedscope   the ranks' stacks, for speedscope

All but html go to standard output, unless --output names a file.
"""
_EPILOG = """\
examples:
  rankscope report runs/1115-021233-train
  rankscope report runs/1115-021233-train --format md | wl-copy
  rankscope report /tmp/nccl_trace_rank_* --output incident.html
  rankscope report runs/1115-021233-train --format trace --output trace.json

exit code: 0 when the report was made, 2 for a mistake in the command, 74 when the output cannot be written
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope report --help')")


def report_command(arguments: list[str]) -> int:
    """The verb: 0 when the report was made, whatever it says."""
    parser = _Parser(
        prog="rankscope report",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", nargs="+", metavar="PATH", help="a file or folder; - for standard input")
    parser.add_argument("--format", choices=list(_FORMS), default="html", help="of the report (default: html)")
    parser.add_argument("--output", metavar="FILE", help="where to write it; - for standard output")
    add_lang(parser)
    chosen = parser.parse_args(arguments)
    _refuse_output(chosen.output, chosen.path)
    evidence, verdict = verdict_on(chosen.path, chosen_language(chosen.lang, os.environ))
    tell_refused(verdict)
    from rankscope.report.live import say
    from rankscope.report.views.incident import incident_of

    data = _FORMS[chosen.format](incident_of(verdict, evidence, _run_folder(chosen.path)))
    output = chosen.output or (_usual_place(chosen.path) if chosen.format == "html" else "-")
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    try:
        _write(output, data)
    except OSError as error:
        raise UsageError(f"'{output}' cannot be written: {error.strerror}") from error
    say(f"{short_path(os.path.abspath(output))} ({len(data) / 1000:,.0f} kB)")
    return 0


def _write(output: str, data: bytes) -> None:
    """A file is replaced; a device or a pipe, as /dev/stdout or `>(less)`, is written to."""
    if os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output):
        with open(output, "wb", buffering=0) as opened:
            opened.write(data)
        return
    write_private(Path(output), data)


def _refuse_output(output: str | None, paths: list[str]) -> None:
    """Before the evidence is read; and what it is made of is never written over."""
    if output is None or output == "-":
        return
    if not output:
        raise UsageError("--output is empty: name a file, or - for standard output")
    if any(os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output) for path in paths):
        raise UsageError(f"--output '{output}' is what the report is made of: name another file")


def _usual_place(paths: list[str]) -> str:
    from rankscope.report.html.page import FILE_NAME

    folder = _run_folder(paths)
    return str(folder / FILE_NAME) if folder is not None else FILE_NAME


def _run_folder(paths: list[str]) -> Path | None:
    only = Path(paths[0])
    return only if len(paths) == 1 and only.is_dir() and is_run_folder(only) else None


def _html(incident: Incident) -> bytes:
    from rankscope.report.html.page import render_page

    return render_page(incident).encode()


def _markdown(incident: Incident) -> bytes:
    from rankscope.report.markdown import markdown

    return markdown(incident).encode()


def _text(incident: Incident) -> bytes:
    from rankscope.report import terminal

    return (terminal.render(incident.verdict, color=False, width=100, folder="") + "\n").encode()


def _json(incident: Incident) -> bytes:
    return verdict_to_json(incident.verdict)


def _trace(incident: Incident) -> bytes:
    from rankscope.report.trace import chrome_trace

    return chrome_trace(incident)


def _speedscope(incident: Incident) -> bytes:
    from rankscope.report.trace import speedscope

    return speedscope(incident)


_FORMS: dict[str, Callable[[Incident], bytes]] = {
    "html": _html,
    "md": _markdown,
    "text": _text,
    "json": _json,
    "trace": _trace,
    "speedscope": _speedscope,
}
