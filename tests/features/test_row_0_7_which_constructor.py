"""The verdict names the constructor that does not return, on one rank or on all."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "0.7"
COMMAND_LINE = "rankscope run --on-hang stop train.py"
HANGS = """
import os, socket, sys
import torch.distributed as dist
from torch.utils.tensorboard import writer

service = socket.create_server(("127.0.0.1", 0))

class Waits(writer.SummaryWriter):
    def _get_file_writer(self):
        connection = socket.create_connection(service.getsockname())
        connection.recv(1)

dist.init_process_group("gloo")
if sys.argv[1] == "all" or os.environ["RANK"] == sys.argv[1]:
    Waits(log_dir="logs")
dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("who", "ranks"), [("1", [1]), ("all", [0, 1])])
def test_the_stuck_constructor_and_its_line_are_named(rankscope: Rankscope, who: str, ranks: list[int]) -> None:
    pytest.importorskip("tensorboard")
    ended = rankscope.run("--on-hang", "stop", "--stall-after", 4, rankscope.script(HANGS), who, timeout_s=120)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["cause"]) == (75, "hang", "blocked-call"), verdict["headline"]
    assert sorted(culprit["rank"] for culprit in verdict["culprits"]) == ranks
    assert "logger on rank 0 only" in " ".join(verdict["fix"]), verdict["fix"]
    assert all("Waits.__init__" in verdict["stages"][str(rank)] for rank in ranks), verdict["stages"]
