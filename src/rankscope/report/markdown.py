"""The incident as markdown, to be pasted into an issue or a chat: verdict, source lines, reasons, fix, logs."""

from __future__ import annotations

import re

from rankscope import __version__
from rankscope.mask import mask_arguments, mask_text
from rankscope.report.plain_text import plain
from rankscope.report.terminal import title
from rankscope.report.views.excerpts import Excerpt, excerpts
from rankscope.report.views.incident import Incident
from rankscope.report.views.tables import Output, outputs
from rankscope.report.views.text import place, rank_ranges
from rankscope.report.words.languages import Language

_MOST_OUTPUTS = 4
_MOST_LINES = 25
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")
"""Only what changes the meaning of a line of prose; dots and dashes within it do not."""


def markdown(incident: Incident) -> str:
    """With a newline at its end. Nothing of the job is left that markdown or HTML would act upon, no secret either."""
    verdict, words = incident.verdict, incident.words
    label = words.label
    parts = [f"### {_title(incident)}", _prose(verdict.headline)]
    for excerpt in excerpts(incident):
        parts.append(_excerpt(excerpt, words))
    parts += _list(label("Because"), verdict.because)
    parts += _list(label("Fix"), verdict.fix)
    if verdict.outcome == "unknown":
        may_be = [f"{each.cause}: {each.because}. {each.next}".rstrip(" .") for each in verdict.alternatives[:5]]
        parts += _list(label("May be"), may_be)
    else:
        others = [f"{each.cause} ({label(each.certainty)}): {each.because}" for each in verdict.alternatives[:3]]
        parts += _list(label("Also possible"), others)
    parts += _list(label("To confirm"), verdict.next[:3])
    parts += _list(label("Notes"), verdict.notes[:8])
    # Ours, and left as they are: a forge makes links of them.
    references = "\n".join(f"- {plain(text)}" for text in verdict.references[:3])
    parts.append(f"**{label('See')}**\n\n{references}" if references else "")
    parts.append(_about(incident))
    for output in outputs(incident)[0][:_MOST_OUTPUTS]:
        parts.append(_output(output, words))
    return "\n\n".join(filter(None, parts)) + "\n"


def _title(incident: Incident) -> str:
    verdict = incident.verdict
    cause = f": {verdict.cause}" if verdict.cause else ""
    return f"{title(verdict, incident.words)}{cause}"


def _prose(text: str) -> str:
    """A line of prose: markdown's own signs are escaped, what stands in backticks is kept as code."""
    pieces = plain(mask_text(text)).split("`")
    if len(pieces) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(pieces))
    return "".join(f"`{piece}`" if at % 2 else _SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces))


def _list(title: str, texts: tuple[str, ...] | list[str]) -> list[str]:
    lines = [f"- {_prose(text)}" for text in texts if text]
    return [f"**{title}**\n\n" + "\n".join(lines)] if lines else []


def _excerpt(excerpt: Excerpt, words: Language) -> str:
    who = words.ranks(excerpt.ranks) if excerpt.ranks else words.label("here")
    named = excerpt.where.function not in ("<module>", "")
    function = words.label(" in {function}", function=_prose(excerpt.where.function)) if named else ""
    kind = {
        "culprit": f"**{words.label('it began here')}**",
        "side": words.label("one side"),
        "victim": words.label("others wait here"),
        "failed": words.label("others failed here"),
    }[excerpt.kind]
    doing = f": {_prose(excerpt.doing)}" if excerpt.doing else ""
    head = f"{kind}, {who}, {_code(place(excerpt.where))}{function}{doing}"
    if not excerpt.lines:
        return head
    width = len(str(max(line.number for line in excerpt.lines if line is not None)))
    signs = {"here": ">", "condition": "?", "": " "}
    body = [
        f"{signs[line.mark]} {line.number:>{width}}  {line.text}".rstrip()
        if line is not None
        else f"  {'':>{width}}  ..."
        for line in excerpt.lines
    ]
    return f"{head}\n\n{_fenced(body, 'python')}"


def _code(text: str) -> str:
    return f"`{plain(text).replace('`', '')}`"


def _fenced(lines: list[str] | tuple[str, ...], language: str) -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2)
    fence = "`" * (longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def _about(incident: Incident) -> str:
    evidence, verdict, words = incident.evidence, incident.verdict, incident.words
    versions = ", ".join(f"{name} {plain(text)}" for name, text in evidence.versions.items() if name in _VERSIONS)
    facts = [words.counted(verdict.world_size, "{count} rank", "{count} ranks")]
    failed = [rank for rank, code in verdict.exit_codes.items() if code]
    if failed:
        codes = {
            code: [rank for rank in failed if verdict.exit_codes[rank] == code]
            for code in verdict.exit_codes.values()
            if code
        }
        told = (f"{code} ({words.label('ranks {ranks}', ranks=rank_ranges(ranks))})" for code, ranks in codes.items())
        facts.append(f"{words.label('exit codes')} {', '.join(told)}")
    if versions:
        facts.append(versions)
    command = _code(" ".join(mask_arguments(evidence.command))[:300]) if evidence.command else ""
    return " · ".join([*map(_prose, facts), *([command] if command else []), f"rankscope {__version__}"])


_VERSIONS = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "python")


def _output(output: Output, words: Language) -> str:
    lines = [*output.lines, *output.errors][-_MOST_LINES:]
    summary = words.label("last output of {ranks}", ranks=words.ranks(output.ranks))
    head = f"<details><summary>{summary}</summary>"
    return "\n\n".join((head, _fenced(lines, "text"), "</details>"))
