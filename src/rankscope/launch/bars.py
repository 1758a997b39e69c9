"""Progress bars of the ranks, in place below the lines that scroll."""

from __future__ import annotations

from rankscope.report.screen import Screen

EVERY_S = 0.1
_MOST = 4


class Bars:
    """The newest state of each rank's bar; the first few are shown."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._states: dict[tuple[int, str], str] = {}

    def show(self, key: tuple[int, str], state: str) -> None:
        if self._states.get(key) != state:
            self._states[key] = state
            self._draw()

    def take_away(self, key: tuple[int, str]) -> None:
        if self._states.pop(key, None) is not None:
            self._draw()

    def _draw(self) -> None:
        bars = [self._states[key] for key in sorted(self._states)]
        more = [f"and {len(bars) - _MOST} more bars"] if len(bars) > _MOST else []
        self._screen.keep("bars", [*bars[:_MOST], *more])
