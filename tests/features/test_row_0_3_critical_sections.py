"""Calls that may hang are announced before they are made, and told with their duration afterwards."""

from __future__ import annotations

import pytest
from notes import EXAMPLES, needs, stages

from conftest import Rankscope

ROW = "0.3"
COMMAND_LINE = "rankscope run --stages on examples/lightning_wandb.py --fast_dev_run 1"
DIFFERS = (
    "The announcement names the class and its strategy as the program gives it: `About to call Trainer "
    "constructor with strategy=DDPStrategy...`."
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_logger_and_trainer_are_announced_by_every_rank(rankscope: Rankscope) -> None:
    needs("lightning", "wandb", "tokenizers")
    options = ("--fast_dev_run", 1, "--root", rankscope.folder / "logs")
    ended = rankscope.run("--stages", "on", EXAMPLES / "lightning_wandb.py", *options, timeout_s=300)
    assert ended.code == 0, ended.err.decode()
    told = stages(ended)
    assert told.count("About to call WandbLogger constructor...") == 2
    assert told.count("About to call Trainer constructor with strategy=DDPStrategy...") == 2
    before, after = told.index("About to call Trainer constructor"), told.index(": Trainer ready (")
    assert before < after
