"""A barrier before the loop, and the lines of the first batch up to the logits, from every rank; FSDP shards."""

from __future__ import annotations

import pytest
from notes import stages, train, without_gpus

from conftest import Rankscope

ROW = "4.3"
COMMAND_LINE = "rankscope train --strategy fsdp"
DIFFERS = (
    "FSDP is `fully_shard`, which keeps original parameters always (`use_orig_params`); logits are made a"
    " part at a time, and their line says so."
)


@pytest.mark.slow
def test_the_lines_of_the_notes_come_in_their_order(rankscope: Rankscope) -> None:
    options = ("--debug", "--strategy", "fsdp", "--max-steps", 2, "--override", "data.source=random")
    ended = train(rankscope, *options, "--override", "model.vocab_size=320", "--", "--stages", "on", env=without_gpus())
    assert ended.code == 0, ended.err.decode()
    for rank in (0, 1):
        own = ended.log(rank, "stdout").decode()
        order = [
            own.index(words)
            for words in (
                f"[Rank {rank}] Reaching barrier before training loop",
                f"[Rank {rank}] Barrier passed, entering training loop",
                f"[Rank {rank}] Starting first batch - moving data to device",
                f"[Rank {rank}] Data moved to device, starting forward pass",
                f"[Rank {rank}] Forward pass completed, logits shape: [8, 128, 320]",
                f"[Rank {rank}] Backward pass completed",
            )
        ]
        assert order == sorted(order)
    assert "strategy fsdp on 2 ranks" in ended.out.decode()
    for words in ("Process group ready", "First backward done", "First optimizer step done"):
        assert words in stages(ended)
