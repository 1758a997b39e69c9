"""Reads the answers of NCCL's RAS: the text that NCCL 2.24 and later print, and the JSON of 2.28.7 and later."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.communicators import CommMember, Communicator, LostProcess, RasLook
from rankscope.evidence.flight import MOST_RANKS

_GPU = r"GPU (?P<cuda>\d+)(?: \(NVML (?P<nvml>\d+)\))?"
_PROCESS = rf"(?: -- (?:{_GPU} managed by process (?P<pid>\d+) on node (?P<host>\S+)|.*))?"
_VERSION = re.compile(r"NCCL version (\S+)")
_TABLE_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+\d+\s+\S+\s+(\d+)\s+\d+\s+([A-Z]+)\s+[A-Z,]+")
_SUMMARY_ROW = re.compile(r"\s*\d+\s+\S+\s+\S+\s+(\d+)\s+\d+")
_COMMUNICATOR = re.compile(r"#(\d+)-(\d+) \(([0-9a-fA-F]+)\) ([A-Z]+)")
_OPERATION = re.compile(r"\s*Communicator ranks have different (\S+) operation counts")
_STATUS = re.compile(r"\s*Communicator ranks have different status")
_MANY_LAUNCHED = re.compile(r"\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_ONE_LAUNCHED = re.compile(
    rf"\s*Rank (\d+) has (?:launched up to operation (\d+)|not launched any operations){_PROCESS}"
)
_MANY_STATUS = re.compile(r"\s*(\d+) ranks have status (\w+)")
_ONE_STATUS = re.compile(rf"\s*Rank (\d+) has status (\w+){_PROCESS}")
_MANY_REPORTED = re.compile(r"\s*\d+ ranks reported (.+)")
_ONE_REPORTED = re.compile(rf"\s*Rank (\d+) reported (.+?){_PROCESS}$")
_MEMBER = re.compile(rf"\s*Rank (\d+){_PROCESS}$")
_MISSING_LIST = re.compile(r"\s*The missing ranks?: ([\d, ]+)")
_LOST = re.compile(r"\s*Process (\d+) on node (\S+) managing GPUs? ")
_STATES = {"NOCOMM": "left", "UNKNOWN": "left", "INIT": "init", "RUNNING": "running", "FINALIZE": "finalize"}
_STATES["ABORT"] = "abort"
_MOST_MEMBERS = 1 << 20
"""Of all communicators of one size together."""
_SUCCESS, _IN_PROGRESS = 0, 7
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}


def parse_answer(answer: str, at: float) -> RasLook:
    """One answer to `STATUS`, in either form. Raises EvidenceError for anything else."""
    text = answer.lstrip()
    return _parse_json(text, at) if text.startswith("{") else _parse_text(text, at)


def _parse_json(text: str, at: float) -> RasLook:
    try:
        told = json.loads(text)
        communicators = tuple(_json_communicator(each) for each in told["communicators"])
        version = str(told.get("nccl_version", ""))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EvidenceError(
            f"NCCL's RAS gave an answer that cannot be read: {type(error).__name__}: {error}"
        ) from error
    lost = {
        (member.pid, member.host): LostProcess(member.pid, member.host, member.state == "dead")
        for comm in communicators
        for member in comm.members
        if member.state in ("unresponsive", "dead") and member.pid is not None
    }
    return RasLook(at, version, True, communicators, tuple(lost.values()))


def _json_communicator(told: dict[str, Any]) -> Communicator:
    present = [_json_member(each) for each in told.get("ranks", [])]
    missing = [_json_missing(each) for each in told.get("missing_ranks", [])]
    members = tuple(sorted((*present, *missing), key=lambda member: member.rank))
    return Communicator(f"{str(told['hash']).removeprefix('0x')}", int(told["size"]), members)


def _json_member(told: dict[str, Any]) -> CommMember:
    status = told.get("status", {})
    failed = [code for code in (status.get("init_state", 0), status.get("async_error", 0)) if _failed(code)]
    state = "init" if status.get("init_state", _SUCCESS) != _SUCCESS else "running"
    if status.get("abort_flag"):
        state = "abort"
    elif status.get("finalize_called") or status.get("destroy_flag"):
        state = "finalize"
    return replace(
        _json_process(told),
        state=state,
        launched={str(name): int(count) for name, count in told.get("collective_counts", {}).items()},
        error=_ERRORS.get(failed[0], f"error {failed[0]}") if failed else "",
    )


def _json_missing(told: dict[str, Any]) -> CommMember:
    status = told.get("status", {})
    if status.get("considered_dead"):
        return replace(_json_process(told), state="dead")
    return replace(_json_process(told), state="unresponsive" if status.get("unresponsive") else "left")


def _json_process(told: dict[str, Any]) -> CommMember:
    pid, gpu = int(told.get("pid", -1)), told.get("nvml_dev")
    return CommMember(
        rank=int(told["rank"]),
        pid=pid if pid > 0 else None,
        host=str(told.get("host", "")),
        gpu=int(gpu) if isinstance(gpu, int) and gpu >= 0 else None,
    )


def _failed(code: object) -> bool:
    return isinstance(code, int) and code not in (_SUCCESS, _IN_PROGRESS)


class _Draft(msgspec.Struct):
    """A communicator while its lines are read."""

    id: str
    size: int
    members: dict[int, CommMember] = msgspec.field(default_factory=dict)
    groups: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    """Operation → (how many ranks, their count), for groups whose members the text may not name."""

    def put(self, rank: int, match: re.Match[str] | None, **changes: Any) -> None:
        member = self.members.get(rank, CommMember(rank))
        if match is not None and match["pid"] is not None:
            gpu = match["nvml"] or match["cuda"]
            member = replace(member, pid=int(match["pid"]), host=match["host"], gpu=int(gpu))
        launched = {**member.launched, **changes.pop("launched", {})}
        self.members[rank] = replace(member, launched=launched, **changes)

    def finished(self) -> Communicator:
        for operation, groups in self.groups.items():
            self._fill(operation, groups)
        return Communicator(self.id, self.size, tuple(self.members[rank] for rank in sorted(self.members)))

    def _fill(self, operation: str, groups: list[tuple[int, int]]) -> None:
        """The ranks that the text does not name have the count of the one group that it does not name."""
        counts = [self.members[rank].launched.get(operation) for rank in self.members]
        unnamed = [(many, count) for many, count in groups if count not in counts]
        absent = {rank for rank, member in self.members.items() if member.state in ("unresponsive", "dead", "left")}
        rest = [
            rank
            for rank in range(self.size)
            if rank not in absent and (rank not in self.members or operation not in self.members[rank].launched)
        ]
        if len(unnamed) == 1 and unnamed[0][0] == len(rest):
            for rank in rest:
                self.put(rank, None, launched={operation: unnamed[0][1]})


def _parse_text(text: str, at: float) -> RasLook:
    version = _VERSION.match(text)
    if version is None:
        raise EvidenceError(f"NCCL's RAS gave an answer that cannot be read: {text[:80]!r}")
    reader = _TextReader()
    try:
        for line in text.splitlines():
            reader.take(line)
    except ValueError as error:  # a number of thousands of digits
        raise EvidenceError(f"NCCL's RAS gave an answer that cannot be read: {error}") from error
    return RasLook(at, version[1], False, reader.communicators(), tuple(reader.lost), reader.processes)


class _TextReader:
    """Line by line; what a member's line means depends on the lines above it."""

    def __init__(self) -> None:
        self.processes: int | None = None
        self.lost: list[LostProcess] = []
        self._drafts: dict[tuple[int, int], _Draft] = {}
        self._sizes: dict[int, int] = {}
        self._section = ""
        self._current: _Draft | None = None
        self._subject = ""
        self._pending: dict[str, Any] = {}

    def communicators(self) -> tuple[Communicator, ...]:
        return tuple(self._drafts[key].finished() for key in sorted(self._drafts))

    def take(self, line: str) -> None:
        if (match := _COMMUNICATOR.match(line)) is not None:
            key = (int(match[1]), int(match[2]))
            self._current = self._drafts.setdefault(key, _Draft(match[3], self._sizes.get(key[0], 0)))
            self._current.id = match[3]
            self._subject = "missing" if match[4] == "INCOMPLETE" else ""
            self._pending = {"state": "unresponsive"} if match[4] == "INCOMPLETE" else {}
        elif line.strip() in ("INCOMPLETE", "DEAD"):
            self._section, self._current = line.strip(), None
        elif self._current is not None:
            self._take_in(self._current, line)
        elif (match := _LOST.match(line)) is not None:
            self.lost.append(LostProcess(int(match[1]), match[2], self._section == "DEAD"))
        elif (match := _TABLE_ROW.fullmatch(line)) is not None:
            self._take_group(int(match[1]), int(match[2]), int(match[3]))
        elif self.processes is None and (match := _SUMMARY_ROW.fullmatch(line)) is not None:
            self.processes = int(match[1])

    def _take_group(self, number: int, communicators: int, size: int) -> None:
        if size > MOST_RANKS or communicators * size > _MOST_MEMBERS:
            raise EvidenceError(f"NCCL's RAS tells of {communicators} communicators of {size} ranks: no job has them")
        self._sizes[number] = size
        for place in range(communicators):
            self._drafts[number, place] = _Draft(f"#{number}-{place}", size)

    def _take_in(self, draft: _Draft, line: str) -> None:
        if (match := _OPERATION.match(line)) is not None:
            self._subject, self._pending = match[1], {}
            draft.groups.setdefault(self._subject, [])
        elif _STATUS.match(line) is not None:
            self._subject, self._pending = "status", {}
        elif (match := _MANY_LAUNCHED.match(line)) is not None:
            self._pending = {"launched": {self._subject: int(match[2] or 0)}}
            draft.groups.setdefault(self._subject, []).append((int(match[1]), int(match[2] or 0)))
        elif (match := _ONE_LAUNCHED.match(line)) is not None:
            draft.put(int(match[1]), match, launched={self._subject: int(match[2] or 0)})
        elif (match := _MANY_STATUS.match(line)) is not None:
            self._pending = {"state": _STATES.get(match[2], match[2].lower())}
        elif (match := _ONE_STATUS.match(line)) is not None:
            draft.put(int(match[1]), match, state=_STATES.get(match[2], match[2].lower()))
        elif (match := _MANY_REPORTED.match(line)) is not None:
            self._pending = {"error": match[1]}
        elif (match := _ONE_REPORTED.match(line)) is not None:
            draft.put(int(match[1]), match, error=match[2])
        elif (match := _MISSING_LIST.match(line)) is not None:
            for rank in match[1].replace(",", " ").split():
                draft.put(int(rank), None, state="unresponsive")
        elif (match := _MEMBER.match(line)) is not None:
            draft.put(int(match[1]), match, **self._pending)
