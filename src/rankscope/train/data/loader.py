"""Batches of a prepared dataset for one rank, read ahead in the background."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.errors import UsageError
from rankscope.train.data.order import BatchOrder
from rankscope.train.data.prepared import PreparedDataset

AHEAD = 3
"""Micro batches that wait for the device at most."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro batch of one rank."""

    step: int
    """Optimizer step that it belongs to."""
    inputs: Tensor
    """[batch, context]"""
    targets: Tensor
    """[batch, context + lookahead - 1]: the token after each input, and with more than one head those after it."""
    sample_ids: Tensor
    """[batch], on the CPU: which samples of the dataset these are."""


class TokenLoader:
    """Iterating gives this rank's micro batches for ever. All ranks together read `BatchOrder`, step by step, and
    within a step rank after rank, so another number of ranks with the same global batch sees the same samples in each
    step. The file is memory-mapped: ranks of one machine share its pages.

    `state_dict` counts what was handed out, not what was read ahead. `close` ends the thread.
    """

    def __init__(
        self,
        prepared: PreparedDataset,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        device: torch.device | str,
        grad_accum_nums: int = 1,
        first_step: int = 0,
        threads: int = 1,
    ) -> None:
        manifest = prepared.manifest
        self._tokens: Any = np.memmap(prepared.tokens_path, dtype=np.dtype(manifest.dtype).newbyteorder("<"), mode="r")
        self._length = manifest.context_length
        self._span = manifest.context_length + manifest.lookahead
        self._checksum = manifest.checksum
        self._batch_size = batch_size
        self._accumulate = grad_accum_nums
        self._rank = rank
        self._per_rank = batch_size * grad_accum_nums
        self._order = BatchOrder(manifest.samples, seed, self._per_rank * world_size)
        self._device = torch.device(device)
        self._reads_ahead = threads > 0
        self._start = first_step * self._order.global_batch
        self._micro = 0
        self._reader: _Reader | None = None

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._next()

    def state_dict(self) -> dict[str, Any]:
        """Whole steps only: a step that was begun is read again."""
        return {
            "samples": self._start + self._micro // self._accumulate * self._order.global_batch,
            "seed": self._order.seed,
            "dataset": self._checksum,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` ends, also with another number of ranks. Refuses another dataset or seed, in which the
        same place would be another sample."""
        if state["dataset"] != self._checksum:
            raise UsageError(
                "the checkpoint was trained on other data than this run's (dataset, tokenizer, context length or "
                "sample count differ): resume with the same data section, or start without --resume"
            )
        if state["seed"] != self._order.seed:
            raise UsageError(
                f"the checkpoint's data was shuffled with system.seed={state['seed']}, this run's with "
                f"{self._order.seed}: write system.seed={state['seed']} to resume it"
            )
        self.close()
        self._start = int(state["samples"])
        self._micro = 0

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _next(self) -> Batch:
        if self._reads_ahead:
            if self._reader is None:
                self._reader = _Reader(self, self._micro)
            tokens, ids = self._reader.take()
        else:
            tokens, ids = self.read(self._micro)
        step = self._start // self._order.global_batch + self._micro // self._accumulate
        self._micro += 1
        if self._device.type != "cpu":
            tokens = tokens.to(self._device, non_blocking=True)
        return Batch(step, tokens[:, : self._length].contiguous(), tokens[:, 1:].contiguous(), ids)

    def read(self, micro: int) -> tuple[Tensor, Tensor]:
        """Tokens [batch, context + lookahead] and sample numbers of a micro batch, counted from this loader's start."""
        step, part = divmod(micro, self._accumulate)
        first = self._start + step * self._order.global_batch + self._rank * self._per_rank + part * self._batch_size
        samples = self._order.at(np.arange(first, first + self._batch_size, dtype=np.int64))
        tokens = torch.empty((self._batch_size, self._span), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        rows = tokens.numpy()
        for row, sample in zip(rows, samples.tolist(), strict=True):
            begin = sample * self._length
            row[:] = self._tokens[begin : begin + self._span]
        return tokens, torch.from_numpy(samples)


class _Reader:
    """The thread that reads ahead, and what it has read."""

    def __init__(self, loader: TokenLoader, first: int) -> None:
        self._loader = loader
        self._ready: queue.Queue[tuple[Tensor, Tensor] | BaseException] = queue.Queue(AHEAD)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(first,), name="rankscope-loader", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Tensor, Tensor]:
        found = self._ready.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        self._closing.set()
        while self._thread.is_alive():
            # Room for the one it may be holding.
            while not self._ready.empty():
                self._ready.get()
            self._thread.join(0.01)

    def _read(self, micro: int) -> None:
        while not self._closing.is_set():
            try:
                found: tuple[Tensor, Tensor] | BaseException = self._loader.read(micro)
            except BaseException as error:  # noqa: BLE001 - raised again where the batch is wanted
                found = error
            self._ready.put(found)
            if isinstance(found, BaseException):
                return
            micro += 1
