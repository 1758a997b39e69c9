"""Small datasets to prepare, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankscope.train.config import DataConfig, DataSamplingConfig, ModelConfig, RunConfig
from rankscope.train.data import PreparedDataset


def run_config(folder: Path, *paths: Path, context: int = 16, samples: int | None = None, **data: Any) -> RunConfig:
    given: dict[str, Any] = {"source": "text", "tokenizer": "bytes", "workers": 1, "cache_dir": str(folder / "cache")}
    return RunConfig(
        model=ModelConfig(context_length=context),
        data=DataConfig(paths=tuple(map(str, paths)), **{**given, **data}),
        data_sampling=DataSamplingConfig(n_samples=samples),
    )


def tokens_of(prepared: PreparedDataset) -> Any:
    return np.fromfile(prepared.tokens_path, dtype=prepared.manifest.dtype)


def text_file(folder: Path, content: bytes | str = "one line\n" * 200, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def quiet(_line: str) -> None:
    return


def left_in(folder: Path) -> list[str]:
    """What preparations left in the cache, locks and remembered fingerprints aside."""
    cache = folder / "cache"
    return (
        sorted(each.name for each in cache.iterdir() if each.suffix not in (".lock", ".json")) if cache.exists() else []
    )


def overrides(folder: Path, **values: str) -> list[str]:
    given = {"source": "text", "tokenizer": "bytes", "workers": "1", "cache_dir": str(folder / "cache"), **values}
    keys = [f"data.{key}={value}" for key, value in given.items()] + ["model.context_length=16"]
    return [part for key in keys for part in ("--override", key)]
