"""Puts the model on the ranks: as it is, replicated (DDP), sharded (FSDP2), or sharded in replicated groups (HSDP)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from rankscope.errors import UsageError
from rankscope.train import norm, rotary, swiglu
from rankscope.train.compute_copies import ComputeCopies
from rankscope.train.config import RunConfig
from rankscope.train.kernels import has_own_kernels
from rankscope.train.loss import chunk_tokens, compile_loss
from rankscope.train.model import Decoder, block_math, initialise
from rankscope.train.place import Place, Spread
from rankscope.train.products import leave_products_to_torch, try_products


@dataclass(frozen=True, slots=True)
class SpreadModel:
    model: Decoder
    """Holds the parameters, sharded or not."""
    called: nn.Module
    """What a micro batch goes through: the model itself, or what wraps it."""
    spread: Spread
    replicas: int
    """Ranks, or groups of ranks, that hold the same gradients once they are reduced."""
    copies: ComputeCopies | None
    sums_each_batch: bool = False
    """Gradients of shards are reduced after each micro batch, because they are too large to wait whole for the last."""

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Gradients travel between ranks only in the last micro batch of a step, unless they must."""
        if isinstance(self.called, DistributedDataParallel) and not last:
            with self.called.no_sync():
                yield
            return
        if isinstance(self.called, FSDPModule):
            self.called.set_requires_gradient_sync(last or self.sums_each_batch)
        yield


def build_model(
    config: RunConfig, place: Place, spread: Spread, rows: int, dtype: torch.dtype, *, keep_copies: bool = True
) -> SpreadModel:
    """The model with its initial weights, on its devices, compiled if wanted.

    `keep_copies`: matrices in the type they are multiplied in, beside the masters, where one process trains alone.
    """
    with torch.device("meta"):
        model = Decoder(config.model, rows, dtype, chunk_tokens(rows, config.training.loss_chunk_tokens))
    replicas = place.world_size
    if spread in ("fsdp", "hsdp"):
        replicas = _shard(model, config, place, spread, dtype)
    model.to_empty(device=place.device)
    initialise(model, config.system.seed)
    model.train()
    _compile(model, config, place, spread)
    copies = ComputeCopies(model) if keep_copies and spread == "single" and dtype != torch.float32 else None
    called: nn.Module = model
    if spread == "ddp":
        called = DistributedDataParallel(
            model,
            device_ids=[place.device.index] if place.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
    each = False
    if spread in ("fsdp", "hsdp") and place.device.type == "cuda":
        memory = torch.cuda.get_device_properties(place.device).total_memory
        each = sums_each_batch(sum(parameter.numel() for parameter in model.parameters()), memory)
    return SpreadModel(model, called, spread, replicas, copies, each)


_MOST_WAITING = 1 / 16
"""Share of a GPU's memory that gradients of the whole model may take while they wait for the last micro batch."""


def sums_each_batch(parameters: int, memory: int) -> bool:
    """Whether a sharded model reduces its gradients after each micro batch: until then they are whole, in fp32, on
    every GPU, which for a model that needs sharding is more than all the rest."""
    return 4 * parameters > _MOST_WAITING * memory


def _shard(model: Decoder, config: RunConfig, place: Place, spread: Spread, dtype: torch.dtype) -> int:
    """Returns how many groups hold a whole copy."""
    if spread == "fsdp":
        mesh, replicas = init_device_mesh(place.device.type, (place.world_size,)), 1
    else:
        size = config.system.shard_size or place.local_world_size
        if place.world_size % size:
            raise UsageError(f"system.shard_size={size} does not divide the {place.world_size} ranks")
        replicas = place.world_size // size
        mesh = init_device_mesh(place.device.type, (replicas, size), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return replicas


_MOST_LAYERS_WHOLE = 24
"""Compiling all blocks in one graph takes 25 s for 12 of them and two minutes for 48."""


def compile_wanted(config: RunConfig, place: Place, spread: Spread) -> str:
    """`off`, `blocks` or `whole`."""
    chosen = config.model.compile
    if chosen != "auto":
        return chosen
    if place.device.type != "cuda":
        return "off"
    # In one graph all gradients come at its end: DDP could not send the first while the others are computed.
    return "whole" if spread == "single" and config.model.layers <= _MOST_LAYERS_WHOLE else "blocks"


def products_wanted(config: RunConfig, place: Place, spread: Spread) -> str:
    """`torch` or `tried`."""
    chosen = config.model.products
    if chosen != "auto":
        return chosen
    usual = spread == "single" and compile_wanted(config, place, spread) != "off" and not config.system.deterministic
    return "tried" if usual and has_own_kernels(place.device) else "torch"


def _compile(model: Decoder, config: RunConfig, place: Place, spread: Spread) -> None:
    wanted = compile_wanted(config, place, spread)
    leave_products_to_torch()
    tried = products_wanted(config, place, spread) == "tried" and try_products(place.device)
    if config.model.products == "tried" and not tried:
        raise UsageError("model.products=tried needs a GPU of NVIDIA's and cuBLASLt: write model.products=torch")
    if wanted == "off":
        return
    options: dict[str, Any] = {"dynamic": False}
    if config.model.max_autotune:
        options["mode"] = "max-autotune-no-cudagraphs"
    compile_loss(place.device, **options)
    if has_own_kernels(place.device):
        norm.use_kernel()
        rotary.use_kernels()
        swiglu.use_kernel()
    if wanted == "whole":
        if spread in ("fsdp", "hsdp"):
            raise UsageError(f"model.compile=whole does not go with {spread}: write model.compile=blocks")
        model.__dict__["hidden"] = torch.compile(model.hidden, **options)
        for block in model.blocks():
            block.math = block_math
        return
    compiled = torch.compile(block_math, fullgraph=True, **options)
    for block in model.blocks():
        block.math = compiled
    model.norm.math = torch.compile(norm.rms_norm, fullgraph=True, **options)


@contextlib.contextmanager
def attention_backend(config: RunConfig, place: Place) -> Iterator[str]:
    """Sets which kernel computes attention; gives its name and the reason."""
    chosen = config.model.attention
    reason = "asked for"
    if chosen == "auto":
        hopper = place.device.type == "cuda" and torch.cuda.get_device_capability(place.device) >= (9, 0)
        chosen = "cudnn" if hopper else "torch"
        reason = "fastest on Hopper and later" if hopper else "torch's own choice"
    if chosen == "torch" or place.device.type == "cpu":
        yield f"{chosen}, {reason}" if place.device.type == "cuda" else "torch's own choice on the CPU"
        return
    backends = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    first = backends.pop(chosen)
    with sdpa_kernel([first, *backends.values()], set_priority=True):
        yield f"{chosen}, {reason}"
