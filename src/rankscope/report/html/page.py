"""Incident → `report.html`: one file with its own style and script, readable without the latter."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from rankscope import __version__
from rankscope.evidence.model import Thread
from rankscope.mask import mask_arguments, mask_text
from rankscope.report.markdown import markdown
from rankscope.report.plain_text import plain
from rankscope.report.views import tables
from rankscope.report.views.calls import call_diff
from rankscope.report.views.curves import panels_of
from rankscope.report.views.excerpts import excerpts
from rankscope.report.views.incident import Incident
from rankscope.report.views.stacks import stack_tree
from rankscope.report.views.strips import WORDS, timings
from rankscope.report.views.text import place, rank_ranges, shown
from rankscope.report.views.waits import NODE_WIDTH, wait_picture
from rankscope.report.words.languages import Language

FILE_NAME = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
_JOINTS = re.compile(r"(?<=\w[._/])(?=\w)")
_LONG_NAME = 20
_FAULTS = {
    "last progress": "the culprit's last progress",
    "failed": "when the culprit failed",
    "left": "when the culprit left",
    "not finite": "the first value that was not finite",
}
"""What the mark in the strips signifies."""
_RETRY = {"yes": "a retry may pass", "elsewhere": "retry elsewhere", "no": "a retry will not help"}


def render_page(incident: Incident) -> str:
    """Everything the job wrote is in it as text; the page may load nothing and run nothing but its own script."""
    style, script = own_file("style.css"), own_file("page.js")
    values = {**_verdict(incident), **_pictures(incident), **_rest(incident)}
    values["sections"] = _sections(values, incident.words)
    return (
        templates()
        .get_template("page.html")
        .render(
            **values,
            policy=policy(style, script),
            style=Markup(style),
            script=Markup(script),
            version=__version__,
            markdown=markdown(incident),
            phase_words={phase: incident.words.label(text) for phase, text in WORDS.items()},
            fault_words={fault: incident.words.label(text) for fault, text in _FAULTS.items()},
            node_width=NODE_WIDTH,
            words=incident.words,
            t=incident.words.label,
        )
    )


def policy(style: str, script: str) -> str:
    """Nothing but this style and this script."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def own_file(name: str) -> str:
    """A style or a script of ours."""
    text = (_TEMPLATES / name).read_text(encoding="utf-8").strip()
    assert "</" not in text, f"{name} would end its own element"
    return text


@lru_cache(maxsize=1)
def templates() -> jinja2.Environment:
    """What is put into them is escaped."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(place=place, ranges=rank_ranges, shown=shown, prose=_prose, breakable=_breakable)
    return made


def _breakable(text: str) -> Markup:
    """A long name may break after a dot or an underscore, on a phone; `train.py` stays whole."""
    words = (_JOINTS.split(word) if len(word) > _LONG_NAME else [word] for word in text.split(" "))
    return Markup(" ").join(Markup("<wbr>").join(map(escape, pieces)) for pieces in words)


def _prose(text: str) -> Markup:
    """A sentence of ours, which may quote the job: what stands in backticks is set as code."""
    pieces = plain(mask_text(text)).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if at % 2 else escape(piece) for at, piece in enumerate(pieces)
    )


def _verdict(incident: Incident) -> dict[str, Any]:
    verdict, words = incident.verdict, incident.words
    tags = [words.label(verdict.certainty) if verdict.cause is not None else "", verdict.cause or ""]
    if verdict.detected_after_s is not None and verdict.detected_after_s >= 0.05:
        tags.append(words.label("seen {time} after the last progress", time=words.duration(verdict.detected_after_s)))
    tags.append(words.label(_RETRY[verdict.retry]) if verdict.cause is not None and verdict.retry in _RETRY else "")
    return {
        "outcome": verdict.outcome.upper(),
        "tone": "well" if verdict.outcome == "ok" else "bad",
        "tags": list(filter(None, tags)),
        "headline": plain(mask_text(verdict.headline)),
        "excerpts": excerpts(incident),
        "fix": verdict.fix,
        "because": verdict.because,
        "alternatives": verdict.alternatives[:5],
        "next": verdict.next,
        "references": tuple(map(plain, verdict.references)),
        "meta": _meta(incident),
    }


def _pictures(incident: Incident) -> dict[str, Any]:
    of, threads = _other_threads(incident)
    return {
        "tree": stack_tree(incident),
        "threads_of": of,
        "threads": threads,
        "diff": call_diff(incident),
        "waits": wait_picture(incident),
        "times": timings(incident),
        "curves": panels_of(incident.curves),
    }


def _rest(incident: Incident) -> dict[str, Any]:
    outputs, unshown = tables.outputs(incident)
    return {
        "ranks_table": tables.rank_rows(incident),
        "stages": tables.stage_rows(incident),
        "variables": tables.differing_variables(incident),
        "hosts": tables.host_rows(incident),
        "outputs": outputs,
        "outputs_unshown": unshown,
        "notes": tables.notes(incident),
        "about": _about(incident),
        "made_at": _clock(time.time()),
    }


def _sections(values: dict[str, Any], words: Language) -> list[tuple[str, str]]:
    """What there is to jump to."""
    known = (
        ("curves", "Training", values["curves"]),
        ("stacks", "Stacks", values["tree"].branches or values["tree"].unknown),
        ("calls", "Calls", values["diff"]),
        ("waits", "Waits", values["waits"]),
        ("time", "Time", values["times"]),
        ("ranks", "Ranks", values["ranks_table"]),
        ("machines", "Machines", values["hosts"]),
        ("output", "Output", values["outputs"]),
        ("notes", "Notes", values["notes"]),
    )
    return [(name, words.label(title)) for name, title, there in known if there]


def _other_threads(incident: Incident) -> tuple[int, tuple[Thread, ...]]:
    """Of the first culprit: those that are in the user's own code, or hold the interpreter lock."""
    for rank in sorted(incident.culprits):
        seen = incident.seen.get(rank)
        if seen is not None and seen.stacks:
            threads = [thread for thread in seen.stacks[-1].threads if not thread.main]
            told = [each for each in threads if each.owns_gil or any(frame.user for frame in each.frames)]
            return rank, tuple(told[:12])
    return -1, ()


def _meta(incident: Incident) -> list[str]:
    verdict, evidence, words = incident.verdict, incident.evidence, incident.words
    count = verdict.world_size or len(evidence.ranks)
    facts = [shown(incident.name, 80)] if incident.name else []
    facts.append(words.counted(count, "{count} rank", "{count} ranks"))
    if evidence.hosts and len(evidence.hosts) > 1:
        facts.append(words.label("{count} machines", count=len(evidence.hosts)))
    began = verdict.started_at or evidence.started_at
    if began:
        facts.append(_clock(began))
    if verdict.started_at is not None and verdict.ended_at is not None:
        facts.append(words.label("ran {time}", time=words.duration(verdict.ended_at - verdict.started_at)))
    if evidence.attempt:
        facts.append(words.label("attempt {number}", number=evidence.attempt + 1))
    return facts


def _about(incident: Incident) -> list[tuple[str, str]]:
    evidence = incident.evidence
    facts = (
        [(incident.words.label("command"), shown(" ".join(mask_arguments(evidence.command)), 1000))]
        if evidence.command
        else []
    )
    facts += [(shown(name, 40), shown(mask_text(text), 200)) for name, text in evidence.versions.items()]
    return facts


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
