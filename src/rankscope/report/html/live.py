"""The page of a job that runs: the board, what was said so far, the newest output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from rankscope import __version__
from rankscope.report.board import Look, Row
from rankscope.report.html.page import own_file, policy, templates
from rankscope.report.words.languages import Language, language

_PHASES = (
    ("data", "data"),
    ("compute", "forward and backward"),
    ("waiting", "waiting for ranks"),
    ("saving", "saving"),
    ("other", "other"),
)
_CLASSES = {"data": "data", "compute": "backward", "waiting": "waiting", "saving": "saving", "other": "other"}
_STILL_S = 2.0
"""Below it nobody is called still."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """What there is to see at a moment. Text of the job in it is masked, and any of it is escaped here."""

    program: str
    folder: str
    headline: str
    trouble: str = ""
    """`HANG`; empty while there is none."""
    tags: tuple[str, ...] = ()
    look: Look | None = None
    still: tuple[tuple[int, float], ...] = ()
    """Rank → seconds without a sign of life."""
    told: tuple[tuple[str, str], ...] = ()
    """Clock and words of what was said, the newest first."""
    outputs: tuple[tuple[int, tuple[str, ...]], ...] = ()
    words: Language = field(default_factory=lambda: language("en"))


def render_live(view: LiveView) -> str:
    """The whole page."""
    style, script = f"{own_file('style.css')}\n{own_file('live.css')}", own_file("live.js")
    return _rendered(
        "live.html",
        view,
        policy=live_policy(),
        style=Markup(style),
        script=Markup(script),
        version=__version__,
    )


def render_board(view: LiveView) -> str:
    """What is drawn anew once a second."""
    return _rendered("live_board.html", view)


def live_policy() -> str:
    """It may ask the launcher it came from, and nobody else."""
    style, script = f"{own_file('style.css')}\n{own_file('live.css')}", own_file("live.js")
    return f"{policy(style, script)}; connect-src 'self'"


def _rendered(name: str, view: LiveView, **more: Any) -> str:
    awaited = _awaited(view.look)
    still: Mapping[int, float] = dict(view.still)

    def still_words(row: Row) -> str:
        least = min((still.get(rank, 0.0) for rank in row.ranks), default=0.0)
        return view.words.duration(least) if least >= _STILL_S else ""

    phases = tuple((name, view.words.label(word)) for name, word in _PHASES)

    return (
        templates()
        .get_template(name)
        .render(
            view=view,
            phase_words=phases,
            words_of=dict(phases),
            words=view.words,
            t=view.words.label,
            phase_class=_CLASSES,
            awaited=lambda row: not awaited.isdisjoint(row.ranks) and not row.waits,
            still=still_words,
            **more,
        )
    )


def _awaited(look: Look | None) -> frozenset[int]:
    """Ranks that others wait for."""
    return frozenset(rank for row in look.ranks for rank in row.awaited) if look is not None else frozenset()
