"""Whether the calls that ranks of one process group make are still the same: a backend that pairs others goes on with
wrong numbers. Compared by the fingerprints on their pages, a few bytes a rank; what differs is read call by call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnosis.desync import find_desync, groups_of, is_young, went_past
from rankscope.diagnosis.timeline import calls_timeline
from rankscope.diagnosis.wait_graph import State
from rankscope.errors import EvidenceError
from rankscope.evidence.fingerprints import Fingerprint, read_fingerprints, same_place
from rankscope.evidence.model import RankEvidence
from rankscope.evidence.pages import read_page
from rankscope.launch.shares import ShareWatch
from rankscope.probe.page import FINGERPRINT_FACTOR, FINGERPRINT_MASK

_FIRST_REST_S = 2.0
_LONGEST_REST_S = 60.0
"""Between two close readings of ranks whose lines differ, as they do where one call is written twice, under `if` and
`else`: that is seen again and again."""
_MOST_DOUBTS = 4
"""So often a job is looked at for nothing but a call from a new line."""
_RIPENS_S = 1.0
"""So long such a call is left alone: most jobs have made more by then, and those tell what it was."""
_MOST_TRIES = 7
"""So often for one difference: what was made may not have completed yet, on a GPU that is far behind its program."""
_AGAIN_S = 1.0
"""After the first close look that has not settled it; twice as long after each further one."""
_PENDING_S = 0.5
"""After a reading that found calls which have not been passed yet."""
PENDING = "pending"
YOUNG = "young"
_UNEVEN_S = 1.5
_ALWAYS_BEHIND = 4
"""Glances in a row at which a rank has made fewer calls than another, while all make more: it may have left one out."""
_WENT_ON = 6
"""Signs of progress of each rank in which none has made a call of the group."""

Sums = dict[int, tuple[int, int]]
"""Rank → what was called and from where, summed up."""


@dataclass(frozen=True, slots=True)
class _Uneven:
    """Ranks that have made different numbers of calls, and make no more."""

    counts: dict[int, int]
    since: float
    progress: Mapping[int, int]


@dataclass(slots=True)
class _Compared:
    """What is known of one process group."""

    calls: int = 0
    """At this place the differences between the ranks were known to be none, or harmless ones."""
    sums: Sums = field(default_factory=dict)
    differed: bool = False
    """At the last glance."""
    tries: int = 0
    due: float = 0.0
    paths_due: float = 0.0
    rest_s: float = _FIRST_REST_S
    uneven: _Uneven | None = None
    doubted_at: float | None = None
    """Since then there is a doubt that too few calls have followed."""
    asked_young: bool = False
    """It was looked at all the same."""
    behind: frozenset[int] = frozenset()
    """Ranks that had made fewer calls than another, at so many glances in a row."""
    glances: int = 0
    least: int = 0
    """Calls that all had made at the last of them."""


class PairingWatch:
    """Asked at every glance."""

    def __init__(self) -> None:
        self._groups: dict[int, _Compared] = {}
        self._doubts = 0
        self._shares = ShareWatch()

    def in_doubt(self) -> bool:
        """A difference was seen that the next glance will confirm, or not."""
        return any(group.differed for group in self._groups.values())

    def wrong(self, pages: Mapping[int, Path], now: float, progress: Mapping[int, int] | None = None) -> bool:
        """Whether a close look at the job is worth it. A difference counts when two glances in a row have seen it.
        `progress`: rank → any count that grows while it goes on."""
        known: dict[int, dict[int, Fingerprint]] = {}
        try:
            if self._shares.misfit(pages, now):
                return True
            for rank, page in pages.items():
                for key, fingerprint in read_fingerprints(page).items():
                    known.setdefault(key, {})[rank] = fingerprint
        except EvidenceError:
            return False  # a page that cannot be read now is told of elsewhere
        differing = [key for key, ranks in known.items() if len(ranks) > 1 and self._differs(key, ranks, now)]
        differing += [key for key, ranks in known.items() if key not in differing and self._lags(key, ranks, now)]
        if differing and self._read_closely(differing, known, pages, now):
            return True
        uneven = [key for key, ranks in known.items() if self._stays_uneven(key, ranks, now, progress or {})]
        return bool(uneven)

    def _stays_uneven(self, key: int, ranks: dict[int, Fingerprint], now: float, progress: Mapping[int, int]) -> bool:
        """A rank has made a call that another has not, and both go on without it: it was paired with one that torch
        makes in C++, of which only the recorder knows."""
        group, counts = self._groups.setdefault(key, _Compared()), {rank: each.calls for rank, each in ranks.items()}
        if len(set(counts.values())) < 2:
            group.uneven = None
            return False
        if group.uneven is None or group.uneven.counts != counts:
            group.uneven = _Uneven(counts, now, dict(progress))
            return False
        before = group.uneven.progress
        if now < group.uneven.since + _UNEVEN_S or self._doubts >= _MOST_DOUBTS:
            return False
        if any(progress.get(rank, 0) < before.get(rank, 0) + _WENT_ON for rank in counts):
            return False
        group.uneven = _Uneven(counts, float("inf"), before)  # once is enough
        self._doubts += 1
        return True

    def _lags(self, key: int, ranks: dict[int, Fingerprint], now: float) -> bool:
        """Of calls that are all made from one line, one that was left out shows in their number alone."""
        group, counts = self._groups.setdefault(key, _Compared()), {rank: each.calls for rank, each in ranks.items()}
        least, most = min(counts.values()), max(counts.values())
        behind = frozenset(rank for rank, calls in counts.items() if calls < most)
        if least == group.least and group.glances:
            return False  # nothing new
        again = behind & group.behind
        group.behind, group.glances = (again, group.glances + 1) if again else (behind, int(bool(behind)))
        group.least = least
        if group.glances < _ALWAYS_BEHIND or now < group.paths_due:
            return False
        group.behind, group.glances = frozenset(), 0
        return True

    def _differs(self, key: int, ranks: dict[int, Fingerprint], now: float) -> bool:
        group = self._groups.setdefault(key, _Compared())
        place = same_place(list(ranks.values()))
        sums: Sums = {rank: found for rank, each in ranks.items() if (found := each.after(place)) is not None}
        if place <= group.calls or len(sums) < len(ranks) or now < group.due:
            return False
        if group.sums.keys() != sums.keys():
            group.calls, group.sums = 0, dict.fromkeys(sums, (0, 0))  # a rank more is compared from the start
        whats, paths = (_agree(group, place, sums, half) for half in (0, 1))
        if whats and (paths or now < group.paths_due):
            group.calls, group.sums, group.differed, group.tries = place, sums, False, 0
            return False
        confirmed, group.differed = group.differed, True
        return confirmed

    def _read_closely(
        self, keys: list[int], known: dict[int, dict[int, Fingerprint]], pages: Mapping[int, Path], now: float
    ) -> bool:
        """A difference that comes to nothing is remembered as harmless."""
        kinds = suspicions({rank: pages[rank] for key in keys for rank in known[key]})
        groups = [self._groups[key] for key in keys]
        firm = bool(kinds & {"contradiction", "shift"})
        young = not firm and YOUNG in kinds
        doubtful = not firm and "doubt" in kinds and self._doubts < _MOST_DOUBTS
        if young and doubtful:
            doubtful = _is_due(groups, now)
        self._doubts += doubtful
        for key, group in zip(keys, groups, strict=True):
            if firm:
                group.due = now + _AGAIN_S * 2**group.tries
                group.tries += 1
            elif young or PENDING in kinds:
                waited = 0.0 if group.doubted_at is None else now - group.doubted_at
                group.due = now + max(_PENDING_S, waited / 2)
            else:
                group.due = 0.0
            if group.tries >= _MOST_TRIES or not (firm or young or PENDING in kinds):
                self._settle(group, known[key], now)
        return firm or doubtful

    def _settle(self, group: _Compared, ranks: dict[int, Fingerprint], now: float) -> None:
        place = same_place(list(ranks.values()))
        sums = {rank: found for rank, each in ranks.items() if (found := each.after(place)) is not None}
        group.calls, group.sums, group.differed, group.tries = place, sums, False, 0
        group.doubted_at, group.asked_young = None, False
        group.paths_due = now + group.rest_s
        group.rest_s = min(2 * group.rest_s, _LONGEST_REST_S)


def _is_due(groups: list[_Compared], now: float) -> bool:
    """Whether a doubt is looked at before more calls have followed it: once, where they do not come soon."""
    since = min((group.doubted_at for group in groups if group.doubted_at is not None), default=now)
    due = now >= since + _RIPENS_S and not any(group.asked_young for group in groups)
    for group in groups:
        group.doubted_at = since
        group.asked_young |= due
    return due


def suspected(pages: Mapping[int, Path]) -> bool:
    """The same of ranks that have ended: whatever they made has completed, and nothing more will follow."""
    watch = PairingWatch()
    watch.wrong(pages, 0.0)
    return watch.wrong(pages, 0.0) or watch.wrong(pages, 2 * _RIPENS_S)


def suspicions(pages: Mapping[int, Path]) -> set[str]:
    """The kinds of differences (see `diagnosis/desync.py`) in what the ranks wrote down of their calls; `PENDING` where
    they have not gone on after it yet: perhaps they hang in it; `YOUNG` where what follows may settle a doubt."""
    states = {}
    try:
        for rank, page in pages.items():
            content = read_page(page)
            seen = RankEvidence(rank, rank, "", content.pid, content.started_at, progress=content.progress)
            states[rank] = State(rank, "elsewhere", seen, calls_timeline(seen))
    except EvidenceError:
        return set()
    found = [each for group in groups_of(states.values()) if (each := find_desync(group, states)) is not None]
    kinds: set[str] = {each.kind if went_past(each, states) else PENDING for each in found}
    return kinds | ({YOUNG} if any(is_young(each, states) for each in found) else set())


def _agree(group: _Compared, place: int, sums: Sums, half: int) -> bool:
    """Whether the ranks made the same calls since the place at which their differences were known. The sums are
    linear: an old difference only grows by a known factor with every call that agrees."""
    factor = pow(FINGERPRINT_FACTOR, place - group.calls, FINGERPRINT_MASK + 1)
    rest = {(own[half] - factor * group.sums[rank][half]) & FINGERPRINT_MASK for rank, own in sums.items()}
    return len(rest) == 1
