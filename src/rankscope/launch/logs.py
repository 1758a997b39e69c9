"""Where the ranks' output goes: torch's redirect options, carried out by our pump."""

from __future__ import annotations

import os
from pathlib import Path
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std

from rankscope.launch.output import Name, OutputPump
from rankscope.private_files import make_own_folder
from rankscope.process_status import gpu_number


class PumpLogs(LogsSpecs):
    """A file per rank and stream, always; the console too, unless the user asked for the file alone.

    The folders are torch's own: `attempt_0/1/stderr.log` is standard error of local rank 1.
    """

    def __init__(
        self, pump: OutputPump, folder: Path, given: LogsSpecs, label: str, copies: dict[str, list[str]]
    ) -> None:
        super().__init__(log_dir=str(folder))
        self._pump = pump
        self._folder = folder.absolute()  # the ranks are told of it, and programs change their folder
        self._redirects: Any = given._redirects
        self._shown: set[int] | None = given._local_ranks_filter
        self._label = label
        self._copies = copies

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Called by elastic at every start of the ranks."""
        attempt = next(iter(envs.values()), {}).get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = self._folder / f"attempt_{attempt}"
        make_own_folder(self._folder)
        make_own_folder(folder)
        destination = LogsDest()
        for stream in ("stdout", "stderr"):
            if self._copies.get(stream):
                self._pump.add_copy(stream, self._copies[stream], folder / f"filtered_{stream}.log")
        for local_rank, variables in envs.items():
            own = folder / str(local_rank)
            make_own_folder(own)
            prefix, name = self._prefix(local_rank, variables)
            destination.stdouts[local_rank] = self._pump.open(
                (local_rank, "stdout"), prefix, own / "stdout.log", self._on_console(local_rank, Std.OUT), name
            )
            destination.stderrs[local_rank] = self._pump.open(
                (local_rank, "stderr"), prefix, own / "stderr.log", self._on_console(local_rank, Std.ERR), name
            )
            destination.error_files[local_rank] = variables["TORCHELASTIC_ERROR_FILE"] = str(own / "error.json")
        return destination

    def _on_console(self, local_rank: int, stream: Std) -> bool:
        if self._shown is not None and self._shown and local_rank not in self._shown:
            return False
        wanted = self._redirects.get(local_rank, Std.NONE) if isinstance(self._redirects, dict) else self._redirects
        return stream not in wanted

    def _prefix(self, local_rank: int, variables: dict[str, str]) -> tuple[str, Name | None]:
        """Before its lines, and the name under which it can share one; none with a prefix of the user's own."""
        template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        if template:
            own = Template(template).safe_substitute(
                role_name=variables.get("ROLE_NAME", ""),
                rank=variables.get("RANK", ""),
                local_rank=local_rank,
            )
            return own, None
        number = int(variables.get("RANK", local_rank))
        if self._label == "GPU":
            ranks = variables.get("LOCAL_WORLD_SIZE", "")
            number = gpu_number(os.environ, local_rank, int(ranks) if ranks.isdigit() else 0)
        return f"{self._label}{number}:", (self._label, number)
