"""Where the ranks' output goes: torch's redirect options, carried out by our pump."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std

from rankscope.held_folders import inside_for_children
from rankscope.launch.output import Name, OutputPump
from rankscope.private_files import make_own_folder
from rankscope.process_status import gpu_number


class PumpLogs(LogsSpecs):
    """A file per rank and stream, always; the console too, unless the user asked for the file alone.

    The folders are torch's own: `attempt_0/1/stderr.log` is standard error of local rank 1. Without a folder there are
    no files, as with torch's `--log-dir /dev/null`.
    """

    def __init__(
        self,
        pump: OutputPump,
        folder: Path | None,
        given: LogsSpecs,
        label: str,
        copies: dict[str, list[str]],
        template: str | None = None,
    ) -> None:
        super().__init__(log_dir=str(folder or os.devnull))
        self._pump = pump
        # Absolute: the ranks are told of it, and programs change their folder.
        self._folder = folder.absolute() if folder is not None else None
        self._redirects: Any = given._redirects
        self._tee: Any = given._tee
        self._shown: set[int] | None = given._local_ranks_filter
        self._label = label
        self._template = template
        self._copies = copies

    @property
    def root_log_dir(self) -> str:
        return str(self._folder or os.devnull)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Called by elastic at every start of the ranks."""
        attempt = next(iter(envs.values()), {}).get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = self._new_folder(f"attempt_{attempt}")
        destination = LogsDest()
        for stream in ("stdout", "stderr"):
            if self._copies.get(stream) and folder is not None:
                self._pump.add_copy(stream, self._copies[stream], folder / f"filtered_{stream}.log")
        for local_rank, variables in envs.items():
            own = self._new_folder(f"attempt_{attempt}/{local_rank}")
            prefix, name = self._prefix(local_rank, variables)
            destination.stdouts[local_rank] = self._pump.open(
                (local_rank, "stdout"), prefix, own and own / "stdout.log", self._on_console(local_rank, Std.OUT), name
            )
            destination.stderrs[local_rank] = self._pump.open(
                (local_rank, "stderr"), prefix, own and own / "stderr.log", self._on_console(local_rank, Std.ERR), name
            )
            variables["TORCHELASTIC_ERROR_FILE"] = str(inside_for_children(own / "error.json")) if own else ""
            destination.error_files[local_rank] = variables["TORCHELASTIC_ERROR_FILE"] or os.devnull
        return destination

    def _new_folder(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        make_own_folder(self._folder)
        make_own_folder(self._folder / name)
        return self._folder / name

    def _on_console(self, local_rank: int, stream: Std) -> bool:
        if self._shown is not None and self._shown and local_rank not in self._shown:
            return False
        return stream in _of(self._tee, local_rank) or stream not in _of(self._redirects, local_rank)

    def _prefix(self, local_rank: int, variables: dict[str, str]) -> tuple[str, Name | None]:
        """Before its lines, and the name under which it can share one; none with a prefix of the user's own."""
        ranks = variables.get("LOCAL_WORLD_SIZE", "")
        gpu = gpu_number(os.environ, local_rank, int(ranks) if ranks.isdigit() else 0)
        rank = variables.get("RANK", str(local_rank))
        if self._template is not None:
            host = socket.gethostname()
            device = physical_gpu(local_rank, variables, os.environ) or gpu
            return self._template.format(rank=rank, local_rank=local_rank, gpu=device, host=host), None
        template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        if template:
            own = Template(template).safe_substitute(
                role_name=variables.get("ROLE_NAME", ""),
                rank=variables.get("RANK", ""),
                local_rank=local_rank,
            )
            return own, None
        number = gpu if self._label == "GPU" else int(rank)
        return f"{self._label}{number}:", (self._label, number)


def physical_gpu(local_rank: int, own: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """As CUDA_VISIBLE_DEVICES names it: that of the rank alone (`--virtual-local-rank`), or of all."""
    alone = own.get("CUDA_VISIBLE_DEVICES", "")
    if alone and "," not in alone:
        return alone
    all_ = [name.strip() for name in (alone or ours.get("CUDA_VISIBLE_DEVICES", "")).split(",")]
    return (all_[local_rank] if local_rank < len(all_) else "") or None


def _of(wanted: Any, local_rank: int) -> Std:
    """What `--tee` or `--redirects` say of one rank: the same for all, or a table."""
    chosen: Std = wanted.get(local_rank, Std.NONE) if isinstance(wanted, dict) else wanted
    return chosen
