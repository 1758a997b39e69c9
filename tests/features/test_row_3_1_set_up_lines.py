"""Every step of the distributed set-up is told, with versions and variables, as `[DDP-DEBUG]`."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "3.1"
COMMAND_LINE = "rankscope.setup_distributed()"
DIFFERS = (
    "More lines than in the notes (timeout, choice and agreement on the backend, the first sum); the last"
    " but one says ranks, backend and device, not only how many GPUs."
)
SET_UP = """
import rankscope
made = rankscope.setup_distributed()
"""


@pytest.mark.slow
def test_the_success_pattern_of_the_notes(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(SET_UP), env={"DDP_BACKEND": "gloo", "NCCL_TIMEOUT": "77"})
    assert ended.code == 0, ended.err.decode()
    for rank in (0, 1):
        told = ended.log(rank, "stdout").decode()
        for line in (
            "setup_distributed() called",
            "Timeout of the set-up and of collectives: 77 s",
            f"RANK={rank}",
            "WORLD_SIZE=2",
            f"Parsed env vars: rank={rank}, local_rank={rank}, world_size=2",
            "Attempting dist.init_process_group(backend='gloo')...",
            "dist.init_process_group(backend='gloo') completed successfully",
            f"setup_distributed() returning successfully for rank {rank}",
        ):
            assert f"[DDP-DEBUG] {line}" in told, line
