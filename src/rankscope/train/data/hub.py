"""Datasets of the Hugging Face hub, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankscope.errors import DataError, UsageError
from rankscope.train.config import DataConfig

ROWS = 256
"""Read at a time."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    rows: Any
    """A `datasets.Dataset`, memory-mapped from the library's own cache."""
    label: str
    text_field: str

    @property
    def text_bytes(self) -> int:
        """About."""
        return int(self.rows.data.nbytes)

    @property
    def fingerprint(self) -> str:
        """Of the rows: the library's own, which follows from the files they came from and all that was done to them."""
        return hashlib.sha256(f"{self.rows._fingerprint} {len(self.rows)}".encode()).hexdigest()

    def texts(self) -> Iterator[list[str]]:
        """All rows in order, some at a time."""
        for begin in range(0, len(self.rows), ROWS):
            values = self.rows[begin : begin + ROWS][self.text_field]
            for number, value in enumerate(values, begin):
                if not isinstance(value, str):
                    raise DataError(
                        f"row {number} of {self.label} holds {type(value).__name__} instead of text in "
                        f"'{self.text_field}'; name another column with data.text_field"
                    )
            yield list(values)


def open_hub_dataset(data: DataConfig) -> HubDataset:
    """Downloads it where the library has not done so before. Raises DataError with the library's reason."""
    try:
        import datasets
    except ImportError:
        raise UsageError("data.source 'hf' needs the package 'datasets': pip install 'rankscope[train,hf]'") from None
    label = "/".join(part for part in (data.name, data.subset, data.split) if part)
    try:
        rows = datasets.load_dataset(data.name, data.subset, split=data.split)
    except Exception as error:
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise DataError(
            f"data.name: the dataset '{label}' could not be had from the hub ({reason}); check data.name, data.subset, "
            "data.split and the network"
        ) from error
    columns = list(rows.column_names or [])
    if data.text_field not in columns:
        raise DataError(
            f"{label} has no column '{data.text_field}' (its columns are {', '.join(columns)}); name it with "
            "data.text_field"
        )
    if len(rows) == 0:
        raise DataError(f"the dataset is empty: {label} has no rows")
    return HubDataset(rows, label, data.text_field)
