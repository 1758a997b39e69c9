"""Where a rank's batches come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rankscope.train.place import Place
from rankscope.train.plan import RunPlan
from rankscope.train.random_tokens import RandomTokens
from rankscope.train.step import Batch


class Loader(Protocol):
    """Gives micro batches for ever, in an order that only the global batch and the seed decide."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_loader(plan: RunPlan, place: Place) -> Loader:
    config = plan.config
    if plan.dataset is None:
        return RandomTokens(
            vocabulary=plan.tokenizer_size,
            context_length=config.model.context_length,
            extra=config.model.multi_token_heads - 1,
            batch_size=config.training.batch_size,
            grad_accum_nums=config.training.grad_accum_nums,
            rank=place.rank,
            world_size=place.world_size,
            seed=config.system.seed,
            device=place.device,
        )
    from rankscope.train.data.loader import TokenLoader
    from rankscope.train.data.prepared import open_prepared

    return TokenLoader(
        open_prepared(Path(plan.dataset)),
        batch_size=config.training.batch_size,
        rank=place.rank,
        world_size=place.world_size,
        seed=config.system.seed,
        device=place.device,
        grad_accum_nums=config.training.grad_accum_nums,
        threads=config.training.num_workers,
    )
