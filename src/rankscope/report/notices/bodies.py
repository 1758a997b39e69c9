"""What a notice says, in the form that its receiver understands: no secret, and nothing that a chat would act on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.mask import mask_text, mask_values
from rankscope.report import terminal
from rankscope.report.notices.otlp import log_request
from rankscope.report.notices.targets import Shape
from rankscope.report.plain_text import plain
from rankscope.report.words.languages import language

Event = Literal["detected", "ended", "attached"]
"""Found while the job still runs, at its end, or by a look at a job of somebody else."""
_MOST_REASONS = 4
_MOST_FIXES = 2
_LONGEST = {"slack": 3000, "discord": 1900, "teams": 6000}
_MARKDOWN = re.compile(r"([\\`*_~|\[\]()<>#])")


@dataclass(frozen=True, slots=True)
class Notice:
    verdict: Verdict
    event: Event
    host: str
    run: str
    """The run's folder; empty where there is none."""


def body(notice: Notice, shape: Shape, environment: Mapping[str, str] | None = None) -> bytes:
    """UTF-8 JSON; for a command, and for addresses that are no chat's, that of the verdict."""
    match shape:
        case "slack":
            return _json({"text": _cut("\n".join(_lines(notice, _for_slack, "*")), _LONGEST[shape])})
        case "discord":
            text = _cut("\n".join(_lines(notice, _for_markdown, "**")), _LONGEST[shape])
            return _json({"content": text, "allowed_mentions": {"parse": []}})
        case "teams":
            return _json(_card([_cut(line, _LONGEST[shape]) for line in _lines(notice, _for_markdown, "")]))
        case "otlp":
            return _json(log_request(notice.verdict, notice.event, notice.host, notice.run, environment))
        case _:
            return _json(mask_values(json.loads(verdict_to_json(notice.verdict))))


def title(verdict: Verdict) -> str:
    """`HANG, proven after 12 s: collective-skipped`."""
    return f"{terminal.title(verdict, language(verdict.language))}{f': {verdict.cause}' if verdict.cause else ''}"


def _lines(notice: Notice, escape: Any, bold: str) -> list[str]:
    def said(text: str) -> str:
        return str(escape(plain(mask_text(text))))

    verdict = notice.verdict
    words = language(verdict.language)
    still_runs = words.label(" (the job still runs)") if notice.event != "ended" else ""
    lines = [f"{bold}{said(title(verdict))}{bold}{still_runs}", said(verdict.headline)]
    lines += [f"- {said(text)}" for text in verdict.because[:_MOST_REASONS]]
    lines += [f"{words.label('fix')}: {said(text)}" for text in verdict.fix[:_MOST_FIXES]]
    count = words.counted(verdict.world_size, "{count} rank", "{count} ranks")
    ranks = f"{count} · " if verdict.world_size else ""
    whom = said(words.ranks(verdict.victims))
    victims = f"{words.label('{ranks} suffered from it', ranks=whom)} · " if verdict.victims else ""
    where = f" · {said(notice.run)}" if notice.run else ""
    return [*lines, f"{ranks}{victims}{said(notice.host)}{where}"]


def _for_slack(text: str) -> str:
    """Slack acts on <...> alone: mentions and links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _for_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)


def _card(lines: list[str]) -> dict[str, Any]:
    blocks = [{"type": "TextBlock", "text": line, "wrap": True} for line in lines]
    return {
        "type": "message",
        "attachments": [
            {
                "contentType": "application/vnd.microsoft.card.adaptive",
                "content": {
                    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                    "type": "AdaptiveCard",
                    "version": "1.4",
                    "body": [{**blocks[0], "weight": "Bolder"}, *blocks[1:]],
                },
            }
        ],
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
