"""A micro model of 46 million parameters and few samples."""

from __future__ import annotations

from rankscope.train.config import parameter_count
from rankscope.train.settings import load_config

ROW = "4.6"
COMMAND_LINE = "rankscope train --preset micro --override data_sampling.n_samples=500"


def test_the_preset_is_as_small_as_the_notes_say() -> None:
    config = load_config("micro", None, ["data_sampling.n_samples=500", "training.batch_size=4"]).config
    assert round(parameter_count(config.model) / 1e6) == 46
    assert (config.data_sampling.n_samples, config.training.batch_size) == (500, 4)
