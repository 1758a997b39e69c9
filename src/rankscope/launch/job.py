"""A running job as its launcher knows it: ranks, their ends, their output, and the folder it is kept in."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnosis.rules.standing.stages import stages_of
from rankscope.errors import EvidenceError
from rankscope.evidence import kernel
from rankscope.evidence.collect import JobFacts, KnownRank, collect, find_page, read_environment
from rankscope.evidence.model import Evidence, Exit
from rankscope.evidence.pages import read_page
from rankscope.held_folders import inside
from rankscope.launch.events import End
from rankscope.launch.memory_track import MemoryTrack
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.output import OutputPump
from rankscope.mask import mask_arguments, mask_text
from rankscope.private_files import write_private
from rankscope.report.words.languages import language

_SHORT_GAP_S = 0.2


@dataclass(slots=True)
class RankProcess:
    rank: int
    local_rank: int
    pid: int
    started_at: float
    poll: Callable[[], int | None]
    exit: Exit | None = None
    life_at: float = field(default_factory=time.time)
    """Last sign of life, as the watcher saw it."""
    environment: dict[str, str] = field(default_factory=dict)
    """As it was started with, secrets masked: a rank that has ended cannot be asked."""
    page: Path | None = None
    """Once it was found: of a rank's inner process it is found only while that lives."""
    memory: MemoryTrack = field(default_factory=MemoryTrack)


class Job:
    """Shared between elastic's thread and the watcher's."""

    def __init__(
        self,
        folder: Path,
        pages: Path | None,
        command: tuple[str, ...],
        versions: dict[str, str],
        pump: OutputPump,
    ) -> None:
        self.folder = folder
        self.pages = pages
        self.pump = pump
        self.host = socket.gethostname()
        self.started_at = time.time()
        self.attempt = 0
        self.world_size = 0
        self.ranks: list[RankProcess] = []
        self.stopping = False
        self.stall_after_s: float | None = None
        self.nodes: Exchange | None = None
        """The other launchers of a job on several machines."""
        self.may_shrink = False
        """It was started with a range of nodes: where one leaves, the others may go on."""
        self.lang = "en"
        """Of what is said about it."""
        self.node_key: bytes | None = None
        """What they all know and nobody else does."""
        self.key_is_given = False
        """By the user, to all nodes. One that was made in the run's folder is another one on each, where they share no
        disk."""
        self.error_files: dict[int, Path] = {}
        """Rank → the file in which torch's `record` left its exception; of the ranks that failed, first ones first."""
        self._command = tuple(mask_arguments(command))
        self.versions = versions
        self._oom_kills = kernel.oom_kill_count()
        self._collecting = threading.Lock()

    def started(self, attempt: int, world_size: int, ranks: list[RankProcess]) -> None:
        """A new set of ranks runs, the first or a restarted one."""
        self.attempt = attempt
        self.world_size = world_size
        self.stopping = False
        self.ranks = ranks
        for process in ranks:
            process.environment = read_environment(process.pid)
        text = json.dumps({str(process.rank): process.pid for process in ranks})
        try:
            write_private(self.folder / "ranks.json", f"{text}\n".encode())
        except OSError as error:
            self.note_problem(f"ranks.json: {error.strerror}")

    problems: tuple[str, ...] = ()

    def note_problem(self, text: str) -> None:
        """Something of ours that could not be kept; told once at the end."""
        text = mask_text(text)
        if text not in self.problems:
            self.problems = (*self.problems, text)

    def poll(self) -> None:
        """Notes who has ended since."""
        for process in self.ranks:
            if process.exit is None:
                code = process.poll()
                if code is not None:
                    process.exit = Exit(code=code, at=time.time(), by_launcher=self.stopping)

    def living(self) -> list[RankProcess]:
        return [process for process in self.ranks if process.exit is None]

    def failed(self) -> list[RankProcess]:
        return [p for p in self.ranks if p.exit is not None and p.exit.code != 0 and not p.exit.by_launcher]

    def page_of(self, process: RankProcess) -> Path | None:
        if process.page is None:
            process.page = find_page(self.pages, self.attempt, process.pid)
        return process.page

    def pages_of_ranks(self) -> dict[int, Path]:
        """Rank → its page, of this attempt, also after its end."""
        return {process.rank: page for process in self.ranks if (page := self.page_of(process)) is not None}

    def ends(self) -> tuple[End, ...]:
        """How the ranks of this node stand now."""
        self.poll()
        return tuple(
            End(process.rank, process.exit.code, process.exit.at, process.exit.by_launcher)
            if process.exit is not None
            else End(process.rank, None)
            for process in self.ranks
        )

    def keep_status(self, environments: dict[int, dict[str, str]], gpus: str | list[str]) -> None:
        """What the ranks started with, for later: `environment.json`."""
        content = {"versions": self.versions, "gpus": gpus, "ranks": environments}
        try:
            write_private(self.folder / "environment.json", (json.dumps(content, indent=2) + "\n").encode())
        except OSError as error:
            self.note_problem(f"environment.json: {error.strerror}")

    def stage_texts(self) -> dict[int, str]:
        """Rank → the stage it was in last, as far as its page tells."""
        found = {}
        for process in self.ranks:
            page = self.page_of(process)
            if page is None:
                continue
            try:
                found[process.rank] = read_page(page, newest_calls=0).progress
            except EvidenceError as error:
                self.note_problem(str(error))
        return {rank: language(self.lang).sentence(stage) for rank, stage in stages_of(found)}

    def gather(self, trigger: str) -> Evidence | None:
        """Evidence of the whole job; None where another node was asked to look, and its ruling will come."""
        return self.collect(trigger) if self.nodes is None else self.nodes.gather(trigger)

    def collect(self, trigger: str) -> Evidence:
        """Evidence of this node. Takes about a second; one at a time."""
        facts = JobFacts(
            host=self.host,
            world_size=self.world_size,
            started_at=self.started_at,
            attempt=self.attempt,
            pages=self.pages,
            command=self._command,
            versions=self.versions,
            stall_after_s=self.stall_after_s,
            oom_kills_before=self._oom_kills,
            comm_logs=inside(self.folder / "comm"),
        )
        with self._collecting:
            if trigger == "non-finite":  # of a job that goes on: its pages tell, and every second counts
                return collect(facts, self._known, trigger, gap_s=_SHORT_GAP_S, ask_nccl=False)
            return collect(facts, self._known, trigger)

    def _known(self) -> list[KnownRank]:
        self.poll()
        now = time.time()
        return [
            KnownRank(
                rank=process.rank,
                local_rank=process.local_rank,
                pid=process.pid,
                started_at=process.started_at,
                exit=process.exit,
                output_tail=self.pump.tail((process.local_rank, "stdout")),
                error_tail=self.pump.tail((process.local_rank, "stderr")),
                still_for_s=now - process.life_at if process.exit is None else None,
                page=process.page,
                environment=process.environment,
                memory=process.memory.marks,
            )
            for process in self.ranks
        ]
