"""Matrix products by cuBLASLt, each with the fastest of the kernels that cuBLASLt offers for its shape.

Torch takes the kernel that cuBLAS thinks best. A GPU that is held back by its power limit is often faster with another
one. So the first time a shape is seen, all kernels on offer are tried, and the fastest is kept; torch's own choice is
one of them. A kernel that needs more energy is slower only once the GPU has lowered its clock for it: what is measured
in the first 40 ms says little about a training step.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_OFFERS = 32
_WORKSPACE = 64 << 20
_ALIGNMENT = 256
_GLANCE_MS = 4.0
_SETTLE_MS = 200.0
_LOOK_MS = 100.0
_FINALISTS = 4

# Names of cublasLt.h and library_types.h.
_COMPUTE_32F = 68
_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_DESC_TRANSA, _DESC_TRANSB = 3, 4
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3
_REDUCTION_IN_PLACE_OR_FP32 = 1 | 2


class _Offer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    rows: int
    columns: int
    inner: int
    kernels: int
    """So many were tried, torch's own choice among them."""
    torchs_ms: float
    best_ms: float


_POINTER = ctypes.c_void_p


def library() -> ctypes.CDLL:
    """The one that torch itself has loaded; OSError where there is none."""
    version = torch.version.cuda
    if version is None:
        raise OSError("this torch has no CUDA")
    found = ctypes.CDLL(f"libcublasLt.so.{version.partition('.')[0]}")
    found.cublasLtMatrixLayoutCreate.argtypes = [
        _POINTER, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64,
    ]  # fmt: skip
    found.cublasLtMatmulAlgoGetHeuristic.argtypes = [*[_POINTER] * 7, ctypes.c_int, _POINTER, _POINTER]
    found.cublasLtMatmul.argtypes = [*[_POINTER] * 14, ctypes.c_size_t, _POINTER]
    for name in ("cublasLtMatmulDescSetAttribute", "cublasLtMatmulPreferenceSetAttribute"):
        getattr(found, name).argtypes = [_POINTER, ctypes.c_int, _POINTER, ctypes.c_size_t]
    return found


def _worked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt answered with status {status}")


class Products:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        self._library = library()
        self._device = device
        self._handle = _POINTER()
        with torch.cuda.device(device):
            _worked(self._library.cublasLtCreate(ctypes.byref(self._handle)))
        self._workspaces: dict[int, Tensor] = {}
        self._chosen: dict[tuple[Any, ...], Callable[[Tensor, Tensor, Tensor], None]] = {}
        self.choices: list[Choice] = []
        """What was found, in the order of the first step."""
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def multiply(
        self, left: Tensor, right: Tensor, out: Tensor, *, left_turned: bool, right_turned: bool, add: bool
    ) -> None:
        """`out = left @ right`, or `out += ...`; a factor that is `turned` lies there transposed. All contiguous."""
        key = (left.shape, right.shape, left_turned, right_turned, add, left.dtype, out.dtype)
        chosen = self._chosen.get(key)
        if any(each.data_ptr() % _ALIGNMENT for each in (left, right, out)):
            chosen = _torchs(left_turned, right_turned, add=add)
        elif chosen is None:
            with torch.cuda.device(self._device):
                chosen = self._chosen[key] = self._choose(left, right, out, left_turned, right_turned, add=add)
        chosen(left, right, out)

    def _choose(
        self, left: Tensor, right: Tensor, out: Tensor, left_turned: bool, right_turned: bool, *, add: bool
    ) -> Callable[[Tensor, Tensor, Tensor], None]:
        scratch = torch.zeros_like(out)
        ways = [
            _torchs(left_turned, right_turned, add=add),
            *self._offered(left, right, out, left_turned, right_turned, add=add),
        ]
        glances = [_mean_ms(way, left, right, scratch, _GLANCE_MS) for way in ways]
        finalists = [0, *sorted(range(1, len(ways)), key=glances.__getitem__)[:_FINALISTS]]
        looks: dict[int, float] = {}
        for number in finalists:
            _mean_ms(ways[number], left, right, scratch, _SETTLE_MS)
            looks[number] = _mean_ms(ways[number], left, right, scratch, _LOOK_MS)
        best = min(looks, key=looks.__getitem__)
        inner = left.shape[0 if left_turned else 1]
        self.choices.append(Choice(out.shape[0], out.shape[1], inner, len(ways), looks[0], looks[best]))
        return ways[best]

    def _offered(
        self, left: Tensor, right: Tensor, out: Tensor, left_turned: bool, right_turned: bool, *, add: bool
    ) -> list[Callable[[Tensor, Tensor, Tensor], None]]:
        # cuBLAS counts columns first, so that what it sees is the transposed product: out.T = right.T @ left.T.
        description = _POINTER()
        _worked(self._library.cublasLtMatmulDescCreate(ctypes.byref(description), _COMPUTE_32F, _TYPES[torch.float32]))
        for name, turned in ((_DESC_TRANSA, right_turned), (_DESC_TRANSB, left_turned)):
            value = ctypes.c_int(int(turned))
            _worked(self._library.cublasLtMatmulDescSetAttribute(description, name, ctypes.byref(value), 4))
        first, second, result = (self._layout(each) for each in (right, left, out))
        wishes = _POINTER()
        _worked(self._library.cublasLtMatmulPreferenceCreate(ctypes.byref(wishes)))
        space, schemes = ctypes.c_uint64(_WORKSPACE), ctypes.c_uint32(_REDUCTION_IN_PLACE_OR_FP32)
        for name, wish, size in ((_PREF_MAX_WORKSPACE_BYTES, space, 8), (_PREF_REDUCTION_SCHEME_MASK, schemes, 4)):
            _worked(self._library.cublasLtMatmulPreferenceSetAttribute(wishes, name, ctypes.byref(wish), size))
        offers, count = (_Offer * _OFFERS)(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, description, first, second, result, result, wishes, _OFFERS, offers, ctypes.byref(count)
        )
        self._library.cublasLtMatmulPreferenceDestroy(wishes)
        if status:
            return []  # it has none: torch's own choice remains
        beta = self._one if add else self._zero

        def way(offer: _Offer) -> Callable[[Tensor, Tensor, Tensor], None]:
            def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
                stream = torch.cuda.current_stream(self._device).cuda_stream
                workspace = self._workspaces.get(stream)
                if workspace is None:
                    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=self._device)
                    self._workspaces[stream] = workspace
                at = out.data_ptr()
                _worked(
                    self._library.cublasLtMatmul(
                        self._handle, description, ctypes.addressof(self._one), right.data_ptr(), first,
                        left.data_ptr(), second, ctypes.addressof(beta), at, result, at, result,
                        ctypes.addressof(offer), workspace.data_ptr(), _WORKSPACE, stream,
                    )
                )  # fmt: skip

            return multiply

        return [way(offer) for offer in offers[: count.value] if offer.state == 0]

    def _layout(self, matrix: Tensor) -> ctypes.c_void_p:
        layout, (rows, columns) = _POINTER(), matrix.shape
        _worked(
            self._library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), _TYPES[matrix.dtype], columns, rows, columns)
        )
        return layout


def _torchs(left_turned: bool, right_turned: bool, *, add: bool) -> Callable[[Tensor, Tensor, Tensor], None]:
    def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
        left = left.T if left_turned else left
        right = right.T if right_turned else right
        if add:
            torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
        elif out.dtype == left.dtype:
            torch.mm(left, right, out=out)
        else:
            torch.mm(left, right, out_dtype=out.dtype, out=out)

    return multiply


def _mean_ms(
    way: Callable[[Tensor, Tensor, Tensor], None], left: Tensor, right: Tensor, out: Tensor, about_ms: float
) -> float:
    """Of one product, when it is made again and again for about so long; infinite where it cannot be made."""
    try:
        once = _timed(way, left, right, out, 1)
        return _timed(way, left, right, out, max(1, math.ceil(about_ms / max(once, 0.01))))
    except RuntimeError:
        return math.inf


def _timed(
    way: Callable[[Tensor, Tensor, Tensor], None], left: Tensor, right: Tensor, out: Tensor, times: int
) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(times):
        way(left, right, out)
    end.record()
    end.synchronize()
    taken: float = begin.elapsed_time(end)
    return taken / times
