"""The rest of the evidence: stages, ends, machines, environments, output, and what could not be had."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import median

from rankscope.evidence.model import HostEvidence, RankEvidence
from rankscope.mask import mask_environment
from rankscope.report.plain_text import plain
from rankscope.report.views.incident import Incident, Role, ended
from rankscope.report.views.text import output_line, rank_ranges, shown
from rankscope.report.words.languages import Language

_OF_EACH_RANK = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "TORCHELASTIC_ERROR_FILE", "SLURM_GTIDS",
    }
)  # fmt: skip
"""They differ by what they are."""
_MOST_VARIABLES = 40
_LAST_LINES = 40
_OUTPUT_BUDGET = 400_000
"""Characters of output that are shown in all."""
_SHAPE = 2000
"""Characters of a line by which ranks are compared."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class StageRow:
    label: str
    ranks: int
    typical: str
    slowest: str
    """The rank that took longest, where it took much longer."""
    inside: str
    """Ranks that are in it now."""
    failed: str


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks that ended or stand alike."""

    ranks: str
    count: int
    role: Role
    end: str
    stage: str
    host: str


@dataclass(frozen=True, slots=True)
class HostRow:
    host: str
    ranks: str
    memory: str
    gpus: tuple[str, ...]
    kernel: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    values: tuple[tuple[str, str], ...]
    """Ranks, and the value they have."""


@dataclass(frozen=True, slots=True)
class Output:
    ranks: tuple[int, ...]
    """More than one where they wrote the same but for numbers: it is the first one's."""
    role: Role
    lines: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def label(self) -> str:
        return rank_ranges(self.ranks, 6)


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    ranks: str = ""


def stage_rows(incident: Incident) -> tuple[StageRow, ...]:
    """In the order in which the first rank came to them."""
    found: dict[str, list[tuple[int, float | None, bool]]] = {}
    first: dict[str, float] = {}
    for seen in incident.evidence.ranks:
        for stage in seen.progress.stages if seen.progress is not None else ():
            took = stage.left_at - stage.entered_at if stage.left_at is not None else None
            found.setdefault(stage.label, []).append((seen.rank, took, stage.failed))
            first[stage.label] = min(first.get(stage.label, stage.entered_at), stage.entered_at)
    rows, words = [], incident.words
    for label in sorted(found, key=first.__getitem__):
        times = [(took, rank) for rank, took, failed in found[label] if took is not None and not failed]
        usual = median(took for took, _ in times) if times else 0.0
        longest, rank = max(times, default=(0.0, -1))
        rows.append(
            StageRow(
                label=shown(label, 100),
                ranks=len({rank for rank, _, _ in found[label]}),
                typical=words.duration(usual) if times else "",
                slowest=f"{words.ranks([rank])}: {words.duration(longest)}" if longest > 2 * usual + 0.5 else "",
                inside=rank_ranges(rank for rank, took, _ in found[label] if took is None),
                failed=rank_ranges(rank for rank, _, failed in found[label] if failed),
            )
        )
    return tuple(rows)


def rank_rows(incident: Incident) -> tuple[RankRow, ...]:
    found: dict[tuple[Role, str, str, str], list[int]] = {}
    codes = incident.verdict.exit_codes
    ranks = sorted({*incident.seen, *codes})
    many = len({seen.host for seen in incident.evidence.ranks}) > 8
    words = incident.words
    for rank in ranks:
        seen = incident.seen.get(rank)
        exit_ = seen.exit if seen is not None else None
        later = codes.get(rank)
        if exit_ is not None:
            end = ended(exit_.code, words)
        elif later is not None:
            end = words.label("alive, then {end}", end=ended(later, words))
        else:
            end = words.label("alive")
        stage = plain(incident.verdict.stages.get(rank, ""))
        host = "" if many or seen is None else seen.host
        found.setdefault((incident.role(rank), end, stage, host), []).append(rank)
    order = {"culprit": 0, "victim": 1, "other": 2}
    rows = sorted(found.items(), key=lambda pair: (order[pair[0][0]], pair[1]))
    return tuple(
        RankRow(rank_ranges(members), len(members), role, end, shown(stage, 160), shown(host, 60))
        for (role, end, stage, host), members in rows[:200]
    )


def host_rows(incident: Incident) -> tuple[HostRow, ...]:
    of_host: dict[str, list[int]] = {}
    for seen in incident.evidence.ranks:
        of_host.setdefault(seen.host, []).append(seen.rank)
    return tuple(
        HostRow(
            host=shown(host.host, 80),
            ranks=rank_ranges(of_host.get(host.host, ())),
            memory=_memory(host, incident.words),
            gpus=tuple(_gpus(host, incident.evidence.ranks, incident.words)),
            kernel=tuple(output_line(line) for line in host.kernel_log[-12:]),
            missing=tuple(shown(f"{what}: {why}", 200) for what, why in host.missing.items()),
        )
        for host in incident.evidence.hosts[:128]
    )


def _memory(host: HostEvidence, words: Language) -> str:
    if host.memory_total_bytes is None or host.memory_available_bytes is None:
        return ""
    killed = words.label(", {count} killed for memory", count=host.oom_kills) if host.oom_kills else ""
    free, whole = _gib(host.memory_available_bytes), _gib(host.memory_total_bytes)
    return f"{words.label('{free} of {whole} free', free=free, whole=whole)}{killed}"


def _gpus(host: HostEvidence, ranks: Iterable[RankEvidence], words: Language) -> Iterable[str]:
    owners = {seen.pid: seen.rank for seen in ranks if seen.host == host.host}
    for gpu in host.gpus:
        part, whole = _gib(gpu.memory_used_bytes), _gib(gpu.memory_total_bytes)
        used = words.label("{part} of {whole}", part=part, whole=whole) if gpu.memory_total_bytes else ""
        percent = gpu.utilization_percent
        busy = words.label("{percent} % busy", percent=percent) if percent is not None else ""
        heat = f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
        users = rank_ranges(owners[pid] for pid in gpu.pids if pid in owners)
        who = words.label("ranks {ranks}", ranks=users) if users else ""
        yield shown(f"GPU {gpu.index}, {gpu.name}: " + ", ".join(filter(None, (used, busy, heat, who))), 200)


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f} GiB"


def differing_variables(incident: Incident) -> tuple[Variable, ...]:
    """Variables that have not the same value on all ranks, though they do not name the rank."""
    every = [(seen.rank, seen.environment) for seen in incident.evidence.ranks if seen.environment]
    if len(every) < 2:
        return ()
    names = sorted({name for _, variables in every for name in variables} - _OF_EACH_RANK)
    found = []
    for name in names:
        values: dict[str | None, list[int]] = {}
        for rank, variables in every:
            values.setdefault(variables.get(name), []).append(rank)
        if len(values) < 2 or _counts_with_rank(values):
            continue
        largest = sorted(values.items(), key=lambda pair: -len(pair[1]))[:8]
        told = tuple(
            (rank_ranges(ranks, 6), incident.words.label("(not set)") if value is None else _value(name, value))
            for value, ranks in largest
        )
        found.append(Variable(shown(name, 80), told))
    return tuple(found[:_MOST_VARIABLES])


def _counts_with_rank(values: dict[str | None, list[int]]) -> bool:
    """As CUDA_VISIBLE_DEVICES often does: every rank has a number of its own."""
    return len(values) > 2 and all(len(ranks) == 1 and (value or "").isdigit() for value, ranks in values.items())


def _value(name: str, value: str) -> str:
    return shown(mask_environment({name: value})[name], 200)


def outputs(incident: Incident) -> tuple[tuple[Output, ...], int]:
    """The last lines of each rank, those that differ in numbers alone together; and how many ranks' there was no room
    for."""
    found: dict[Hashable, list[int]] = {}
    tails: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for seen in incident.evidence.ranks:
        lines, errors = seen.output_tail[-_LAST_LINES:], seen.error_tail[-_LAST_LINES:]
        if not lines and not errors and seen.log is not None:
            lines = seen.log.tail[-_LAST_LINES:]
        if not lines and not errors:
            continue
        tails[seen.rank] = lines, errors
        found.setdefault((incident.role(seen.rank), _shape(lines), _shape(errors)), []).append(seen.rank)
    order = {"culprit": 0, "victim": 1, "other": 2}
    ordered = sorted(found.values(), key=lambda ranks: (order[incident.role(ranks[0])], ranks[0]))
    made: list[Output] = []
    left = _OUTPUT_BUDGET
    for number, ranks in enumerate(ordered):
        lines, errors = (tuple(map(output_line, part)) for part in tails[ranks[0]])
        left -= sum(map(len, (*lines, *errors)))
        if left < 0 and made:
            return tuple(made), sum(map(len, ordered[number:]))
        made.append(Output(tuple(ranks), incident.role(ranks[0]), lines, errors))
    return tuple(made), 0


def _shape(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_DIGITS.sub("0", line[:_SHAPE]) for line in lines)


def notes(incident: Incident) -> tuple[Note, ...]:
    """What is noted beside the verdict, and what could not be had, once each."""
    label = incident.words.label
    found = {Note(plain(text)): None for text in incident.verdict.notes}
    found |= {Note(label("not used: {what}", what=plain(text))): None for text in incident.verdict.refused[:20]}
    by_text: dict[str, list[int]] = {}
    for seen in incident.evidence.ranks:
        for what, why in seen.missing.items():
            by_text.setdefault(label("no {what}: {why}", what=what, why=why), []).append(seen.rank)
    found |= {Note(shown(text, 300), rank_ranges(ranks, 6)): None for text, ranks in by_text.items()}
    unseen = [rank for rank in range(incident.verdict.world_size) if rank not in incident.seen]
    if unseen and incident.seen:
        found[Note(label("nothing is known of them"), rank_ranges(unseen, 6))] = None
    return tuple(found)[:60]
