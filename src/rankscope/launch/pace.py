"""Compares where the ranks' time goes while the job runs, and says once which rank the others keep waiting for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.rules.numbers.stragglers import between, find_stragglers, kept_waiting, usual_place
from rankscope.diagnosis.verdict import Straggler, Where
from rankscope.diagnosis.views import where
from rankscope.errors import EvidenceError
from rankscope.evidence.model import Phases, StackSample
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.evidence.stacks import sample_stacks

WINDOW_S = 10.0
LIVE_SHARE = 0.15
"""Of a window, lost by the others, in two windows on end: worth a line while the job runs."""
LEAST_SHARE, LEAST_LOST_S = 0.1, 2.0
"""Of the whole run: worth a line at its end."""
_SAMPLES, _GAP_S = 5, 0.13


class Pace:
    def __init__(self) -> None:
        self._base: dict[int, Phases] = {}
        self._before: set[int] = set()
        self._places: dict[int, Where] = {}
        self._told = False

    def restart(self) -> None:
        """A new set of ranks runs."""
        self._base, self._before, self._places, self._told = {}, set(), {}, False

    def glance(self, now: Mapping[int, Phases | None], pids: Mapping[int, int]) -> Fact | None:
        """Takes what the pages say now; `pids` are those of the same ranks. Whom the others keep waiting for, once per
        attempt."""
        current = {rank: phases for rank, phases in now.items() if phases is not None}
        if self._told or len(current) < len(now) or len(now) < 2:
            return None
        if self._base.keys() != current.keys():
            self._base = current
            return None
        added = {rank: between(self._base[rank], phases) for rank, phases in current.items()}
        if min(phases.until - phases.since for phases in added.values()) < WINDOW_S:
            return None
        self._base = current
        found = find_stragglers(added, least_share=LIVE_SHARE)
        slow = {each.rank for each in found}
        before, self._before = self._before, slow
        if not slow or slow != before:
            return None
        self._told = True
        self._places = _places({rank: pids[rank] for rank in slow})
        whole = find_stragglers(current, places=self._places)
        return kept_waiting(whole if {each.rank for each in whole} == slow else found, sorted(current))

    def of_the_run(self, pages: Mapping[int, Path]) -> tuple[Straggler, ...]:
        """Read off the pages at the end. Raises EvidenceError where one cannot be read."""
        times = {rank: phases for rank, page in pages.items() if (phases := read_heartbeat(page).phases) is not None}
        if len(times) < len(pages):
            return ()
        places = dict(self._places)
        found = find_stragglers(times, least_share=LEAST_SHARE, least_lost_s=LEAST_LOST_S)
        for each in found:
            if each.phase == "data" and each.rank not in places:
                loader = read_page(pages[each.rank], newest_calls=0).progress.loader
                at = where(loader.site[0]) if loader is not None and loader.site else None
                if at is not None:
                    places[each.rank] = at
        return find_stragglers(times, least_share=LEAST_SHARE, least_lost_s=LEAST_LOST_S, places=places)


def _places(pids: Mapping[int, int]) -> dict[int, Where]:
    """Where each of the slow ranks mostly stands, by some looks at its stack."""
    seen: dict[int, list[StackSample]] = {rank: [] for rank in pids}
    for number in range(_SAMPLES):
        if number:
            time.sleep(_GAP_S)
        try:
            stacks = sample_stacks(list(pids.values()))
        except EvidenceError:
            return {}  # the line is a help; without it the rank is still named
        for rank, pid in pids.items():
            stack = stacks.get(pid)
            if isinstance(stack, StackSample):
                seen[rank].append(stack)
    return {rank: at for rank, samples in seen.items() if (at := usual_place(samples)) is not None}
