"""Calls that may hang are announced before they are made, and told with their duration afterwards."""

from __future__ import annotations

import pytest
from notes import stages

from conftest import Ended
from shared_runs import lightning_try

__all__ = ["lightning_try"]

ROW = "0.3"
COMMAND_LINE = "rankscope run --stages on examples/lightning_wandb.py --fast_dev_run 1"
DIFFERS = (
    "The announcement names the class and its strategy as the program gives it: `About to call Trainer "
    "constructor with strategy=DDPStrategy...`."
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_logger_and_trainer_are_announced_by_every_rank(lightning_try: Ended) -> None:
    assert lightning_try.code == 0, lightning_try.err.decode()
    told = stages(lightning_try)
    assert told.count("About to call WandbLogger constructor...") == 2
    assert told.count("About to call Trainer constructor with strategy=DDPStrategy...") == 2
    before, after = told.index("About to call Trainer constructor"), told.index(": Trainer ready (")
    assert before < after
