"""Matrices in bf16 or fp16 beside their fp32 masters, so that nothing is cast again for every micro batch.

The model's parameters stay fp32: the optimizer, checkpoints and finite checks see only them. Products use copies in
which matrices with the same input lie in one piece. Gradients of the copies are added to the masters' in fp32 after
each micro batch. For one process without a wrapper; DDP casts in the forward pass, and FSDP casts what it gathers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.train.kernels import has_own_kernels
from rankscope.train.model import BlockCopies, Decoder


@dataclass(frozen=True, slots=True)
class _Piece:
    master: Tensor
    copy: Tensor
    first: int
    last: int


class ComputeCopies:
    """Puts copies of all matrices into the model; from then on the model computes with them."""

    def __init__(self, model: Decoder) -> None:
        self._dtype = model.dtype
        self._pieces: list[_Piece] = []
        for block in model.blocks():
            attention, feed_forward = block.attention, block.feed_forward
            block.copies = BlockCopies(
                attention_inputs=self._copy(attention.wq.weight, attention.wk.weight, attention.wv.weight),
                attention_output=self._copy(attention.wo.weight),
                ffn_inputs=self._copy(feed_forward.gate.weight, feed_forward.up.weight),
                ffn_output=self._copy(feed_forward.down.weight),
            )
        model.embedding_copy = self._copy(model.tok_embed.weight)
        if model.output is not None:
            model.output_copy = self._copy(model.output.weight)
        self._add: Callable[[Tensor, Tensor], object] = Tensor.add_
        if has_own_kernels(model.tok_embed.weight.device):
            from rankscope.train.kernels.adding import add_in_place

            self._add = add_in_place
        self._masters: list[Tensor] = [piece.master.detach() for piece in self._pieces]
        self._views = [piece.copy.detach()[piece.first : piece.last] for piece in self._pieces]
        self.refresh()

    def _copy(self, *masters: Tensor) -> Tensor:
        rows = sum(master.shape[0] for master in masters)
        copy = torch.empty(rows, masters[0].shape[1], dtype=self._dtype, device=masters[0].device, requires_grad=True)
        first = 0
        for master in masters:
            self._pieces.append(_Piece(master, copy, first, first + master.shape[0]))
            first += master.shape[0]
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        """After the masters have changed."""
        torch._foreach_copy_(self._views, self._masters)

    @torch.no_grad()
    def collect(self) -> None:
        """After a backward pass: its gradients join the masters', and the copies are ready for the next one."""
        empty: list[tuple[_Piece, Tensor]] = []
        totals: list[Tensor] = []
        found: list[Tensor] = []
        for piece in self._pieces:
            gradient = piece.copy.grad
            if gradient is None:
                continue
            part = gradient[piece.first : piece.last]
            if piece.master.grad is None:
                empty.append((piece, part))
            else:
                totals.append(piece.master.grad)
                found.append(part)
        if empty:
            fresh = [torch.empty_like(piece.master) for piece, _ in empty]
            torch._foreach_copy_(fresh, [part for _, part in empty])
            for (piece, _), gradient in zip(empty, fresh, strict=True):
                piece.master.grad = gradient
        for total, part in zip(totals, found, strict=True):
            self._add(total, part)
        for piece in self._pieces:
            piece.copy.grad = None
