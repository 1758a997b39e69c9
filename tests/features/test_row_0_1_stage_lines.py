"""Every rank tells its stages in the notes' form: time, time since the start, rank, local rank, process."""

from __future__ import annotations

import pytest
from notes import GLOO, STAGE, stages

from conftest import Rankscope

ROW = "0.1"
COMMAND_LINE = "rankscope run --stages on train.py"
DIFFERS = (
    "Behind the words of a checkpoint stand, in brackets, how long it took and the memory of host and "
    "GPU: that is what people look for next."
)


@pytest.mark.slow
def test_all_ranks_write_checkpoint_lines_in_the_form_of_the_notes(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", rankscope.script(GLOO))
    assert ended.code == 0, ended.err.decode()
    lines = [match for line in stages(ended).splitlines() if (match := STAGE.fullmatch(line))]
    for rank in ("0", "1"):
        words = [match[4] for match in lines if (match[1], match[2]) == (rank, "2")]
        assert words[:2] == ["Script started", "Process group ready"], words
    assert "CHECKPOINT" in ended.err.decode()
