"""Checkpoints of a running job: written in the background, complete or not at all, and read back bit by bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from rankscope.errors import CheckpointNotSaved, UsageError
from rankscope.train.config import CheckpointConfig
from rankscope.train.state import directory as directories
from rankscope.train.state import manifest as manifests
from rankscope.train.state import randomness, tensors
from rankscope.train.state.directory import CheckpointDirectory
from rankscope.train.state.manifest import Found, Manifest, TensorForm
from rankscope.train.state.reading import expect_one_process, read_tensors, reason, shape_of
from rankscope.train.state.staging import Stage


class Resumable(Protocol):
    """A loader, as far as a checkpoint knows it. The state is plain data that JSON can hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Writing:
    """One save on its way."""

    manifest: Manifest
    staged: dict[str, Tensor]
    began: float


class Checkpointer:
    """Saves and restores model, optimizer, loader, step and every rank's random numbers.

    All ranks construct it, and all ranks make the same calls at the same steps. What happens between them while a
    checkpoint is written goes through a process group of its own, so that it never mixes with the training's traffic.
    """

    def __init__(self, config: CheckpointConfig, *, say: Callable[[str], None], timeout_s: float = 1800.0) -> None:
        self._config = config
        self._say = say
        self._distributed = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank() if self._distributed else 0
        self._world = dist.get_world_size() if self._distributed else 1
        self._group: dist.ProcessGroup | None = None
        if self._distributed:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s), group_desc="checkpoints")
        else:
            expect_one_process()
        self._directory = CheckpointDirectory(Path(config.dir))
        self._stage = Stage()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self.last_saved: int | None = None
        """Step of the newest complete checkpoint of this run, or of the one it went on from."""
        self.extra: dict[str, Any] = {}
        """What was given to `save` as extra, after `load_latest` found a checkpoint."""
        self._on_rank_0(self._directory.open)

    def make_room(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """To be called once the optimizer has made a step: in the background, takes the host memory that the first
        save of GPU tensors needs, so that the training does not wait for it then."""
        held = _named(model, optimizer, tensors.optimizer_tensors(model, optimizer))
        own = {name: tensor for name, tensor in self._own_part(held).items() if tensor.is_cuda}
        if own and self._thread is None:
            self._thread = threading.Thread(
                target=self._make_room, args=(own,), name="rankscope-checkpoint-room", daemon=True
            )
            self._thread.start()

    def _make_room(self, own: Mapping[str, Tensor]) -> None:
        try:
            self._stage.make_room(own)
        except RuntimeError as error:
            self._say(f"no host memory for checkpoints could be taken ahead: {reason(error)}")

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Resumable | None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves the state as of now, after `step` steps. Returns when it is copied, not when it is on disk.

        A save that fails is reported and leaves the previous checkpoint alone; training goes on. A save that is still
        under way is waited for first.
        """
        self._join()
        kept = tensors.optimizer_tensors(model, optimizer)
        manifest = Manifest(
            step=step,
            world_size=self._world,
            parameters=_forms(model),
            optimizer={
                name: {key: tensors.form(value) for key, value in entries.items()} for name, entries in kept.items()
            },
            loader=loader.state_dict() if loader is not None else {},
            extra=dict(extra or {}),
            saved_at=time.time(),
            torch=str(torch.__version__),
            files={},
        )
        held = _named(model, optimizer, kept)
        staged = self._stage.take(self._own_part(held))
        staged[_rng_name(self._rank)] = torch.frombuffer(bytearray(randomness.captured()), dtype=torch.uint8)
        writing = _Writing(manifest, staged, time.monotonic())
        self._thread = threading.Thread(target=self._write, args=(writing,), name="rankscope-checkpoint", daemon=True)
        self._thread.start()
        if not self._config.asynchronous:
            self._join()

    def wait(self) -> None:
        """Returns when the last save has ended; raises CheckpointNotSaved, on every rank, if it failed."""
        self._join()
        if self._failure is not None:
            raise CheckpointNotSaved(self._failure)

    def close(self) -> None:
        """Waits for a save under way and lets other jobs use the directory."""
        self._join()
        self._directory.close()

    def load_latest(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Resumable | None = None
    ) -> int | None:
        """Restores what `checkpoint.resume` asks for; returns the number of steps made, None for a fresh start."""
        chosen = self._chosen(manifests.bytes_of_a_checkpoint(_forms(model)))
        if chosen is None:
            return None
        found = manifests.read(chosen)
        if isinstance(found, str):
            raise UsageError(f"{chosen} is not a complete checkpoint: {found}")
        if (reason_against := manifests.refusal(found, _forms(model))) is not None:
            raise UsageError(reason_against)
        self._read(found, model, optimizer)
        if loader is not None and found.manifest.loader:
            loader.load_state_dict(found.manifest.loader)
        self.extra = found.manifest.extra
        self.last_saved = found.manifest.step
        if self._rank == 0:
            self._say(_resumed(found, self._world))
        return found.manifest.step

    def _chosen(self, needed: int) -> Path | None:
        """The folder to go on from: rank 0 decides, since file systems may show ranks different things."""
        if self._config.resume == "no":
            self._on_rank_0(lambda: self._make_way(None))
            self._on_rank_0(lambda: directories.room_for(self._directory.path, needed))
            return None
        chosen = self._on_rank_0(self._find)
        self._on_rank_0(lambda: directories.room_for(self._directory.path, needed))
        return chosen

    def _find(self) -> Path | None:
        if self._config.resume != "auto":
            asked = Path(self._config.resume)
            found = manifests.read(asked) if asked.is_dir() else "there is no such folder"
            if isinstance(found, str):
                raise UsageError(f"checkpoint.resume: {asked} is not a complete checkpoint: {found}")
            self._make_way(found)
            return asked
        newest, doubtful = directories.newest(self._directory.path)
        for sentence in doubtful:
            self._say(sentence)
        if newest is None:
            self._say(f"no complete checkpoint in '{self._directory.path}': starting from the beginning")
            return None
        return newest.folder

    def _make_way(self, start: Found | None) -> None:
        """Checkpoints that this run did not come from are put aside, so that they are neither taken for its own
        later on nor removed as old ones."""
        here = start is not None and start.folder.resolve().parent == self._directory.path.resolve()
        others = [
            found.folder
            for found in manifests.complete(self._directory.path)[0]
            if start is None or not here or found.manifest.step > start.manifest.step
        ]
        aside = self._directory.set_aside(others)
        if aside is not None:
            how = "starts from the beginning" if start is None else f"goes on from {start.folder}"
            self._say(f"this run {how}: checkpoints of an earlier run are now in '{aside}'")
        keep = self._config.keep_earlier
        gone = [] if keep is None else self._directory.forget_earlier(keep)
        if gone:
            self._say(
                f"checkpoints of older runs were removed: {', '.join(gone)} "
                f"(checkpoint.keep_earlier={keep}; null keeps all)"
            )

    def _read(self, found: Found, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        kept = tensors.empty_optimizer_tensors(model, optimizer, found.manifest.optimizer)
        wanted = _named(model, optimizer, kept)
        own_rng = _rng_name(self._rank) if self._rank < found.manifest.world_size else None
        if own_rng is not None:
            wanted[own_rng] = torch.empty(shape_of(found.folder, own_rng), dtype=torch.uint8)
        read_tensors(found.folder, wanted, self._group)
        tensors.restore_optimizer(model, optimizer, kept)
        if own_rng is not None:
            randomness.restore(bytes(wanted[own_rng].tolist()))

    def _own_part(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank writes: its shards, and its share of what all ranks have."""
        replicated = {name: tensor for name, tensor in held.items() if not isinstance(tensor, DTensor)}
        taken = tensors.shares(replicated, self._world)
        return {name: tensor for name, tensor in held.items() if taken.get(name, self._rank) == self._rank}

    def _write(self, writing: _Writing) -> None:
        """In the background, on every rank at once."""
        step = writing.manifest.step
        try:
            failure = self._attempt(lambda: self._directory.begin(step) if self._rank == 0 else None)
            failure = failure or self._attempt(lambda: self._write_tensors(writing), writing_step=step)
            failure = failure or self._attempt(lambda: self._publish(writing.manifest) if self._rank == 0 else None)
        except RuntimeError as error:  # a rank is gone, and with it the agreement on how it went
            failure = reason(error)
        if failure is not None:
            if self._rank == 0:
                self._directory.abandon(step)
            stays = "there is no other yet" if self.last_saved is None else f"the one of step {self.last_saved} stays"
            self._failure = (
                f"the checkpoint of step {step} could not be saved in '{self._config.dir}': {failure}; {stays}"
            )
        else:
            self._failure = None
            self.last_saved = step
        if self._rank == 0:
            seconds = time.monotonic() - writing.began
            folder = self._directory.path / manifests.folder_name(step)
            self._say(self._failure or f"checkpoint of step {step} saved: {folder} ({seconds:.1f} s)")

    def _write_tensors(self, writing: _Writing) -> None:
        self._stage.wait()
        save(
            _by_kind(writing.staged),
            storage_writer=FileSystemWriter(self._directory.partial(writing.manifest.step), overwrite=False),
            process_group=self._group,
            no_dist=not self._distributed,
        )

    def _publish(self, manifest: Manifest) -> None:
        files = manifests.sizes(self._directory.partial(manifest.step))
        self._directory.publish(replace(manifest, files=files), self._config.keep_last)

    def _attempt(self, work: Callable[[], None], writing_step: int | None = None) -> str | None:
        """Does it on every rank; the first rank's failure is everyone's, so that all agree on how it went."""
        failure: str | None = None
        try:
            work()
        except (Exception, CheckpointException) as error:  # noqa: BLE001  said; the training must not end from it
            of_the_disk = self._directory.complaint(writing_step) if writing_step is not None else None
            failure = of_the_disk or reason(error)
        return next((other for other in self._gathered(failure) if other is not None), None)

    def _gathered(self, value: str | None) -> list[str | None]:
        if not self._distributed:
            return [value]
        everyone: list[str | None] = [None] * self._world
        dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    def _on_rank_0(self, work: Callable[[], Path | None]) -> Path | None:
        """Rank 0 does it, every rank gets the result, or the user's mistake that rank 0 found."""
        box: list[Any] = [None, None]
        if self._rank == 0:
            try:
                box[0] = work()
            except UsageError as error:
                box[1] = str(error)
        if self._distributed:
            dist.broadcast_object_list(box, src=0, group=self._group)
        if box[1] is not None:
            raise UsageError(box[1])
        result: Path | None = box[0]
        return result

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _named(
    model: nn.Module, optimizer: torch.optim.Optimizer, kept: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Everything by the name it has in a checkpoint."""
    named = {f"model.{name}": tensor for name, tensor in tensors.model_tensors(model).items()}
    named.update({f"master.{name}": tensor for name, tensor in tensors.master_copies(model, optimizer).items()})
    for name, entries in kept.items():
        named.update({f"optimizer.{name}.{key}": value for key, value in entries.items()})
    return named


def _by_kind(named: Mapping[str, Tensor]) -> dict[str, Any]:
    """Torch spends time on each entry of the outermost dictionary, and joins the levels' names again by itself."""
    kinds: dict[str, Any] = {}
    for name, tensor in named.items():
        kind, rest = name.split(".", 1)
        kinds.setdefault(kind, {})[rest] = tensor
    return kinds


def _rng_name(rank: int) -> str:
    return f"rng.rank{rank}"


def _forms(model: nn.Module) -> dict[str, TensorForm]:
    return {name: tensors.form(tensor) for name, tensor in tensors.model_tensors(model).items()}


def _resumed(found: Found, world_size: int) -> str:
    made = found.manifest.step
    sentence = f"going on from {found.folder}, after {made:,} step{'' if made == 1 else 's'}"
    if found.manifest.world_size != world_size:
        sentence += (
            f"; it was saved by {found.manifest.world_size} ranks and this run has {world_size}: "
            "the order of the data is the same, random numbers are only restored on ranks that were there"
        )
    return sentence
