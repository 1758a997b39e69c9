"""NCCL and torch.distributed tell what they do; NCCL's lines go to a file per rank, its graph beside them."""

from __future__ import annotations

import pytest
import torch

from conftest import Rankscope

ROW = "3.5"
COMMAND_LINE = "rankscope run --comm-debug train.py"
TELLS = """
import os
for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE"):
    print(name, os.environ[name])
"""
SUM = """
import os
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_variables_of_the_notes_are_set_and_those_of_the_user_kept(rankscope: Rankscope) -> None:
    ended = rankscope.run("--comm-debug", rankscope.script(TELLS), env={"NCCL_DEBUG_SUBSYS": "INIT"})
    shown = ended.log(0, "stdout").decode()
    assert "NCCL_DEBUG INFO" in shown
    assert "NCCL_DEBUG_SUBSYS INIT" in shown
    assert "TORCH_DISTRIBUTED_DEBUG DETAIL" in shown
    assert f"NCCL_GRAPH_DUMP_FILE {ended.run_dir}/comm/nccl-graph.xml" in shown


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_writes_a_file_for_each_rank_and_its_graph(rankscope: Rankscope) -> None:
    env = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    ended = rankscope.run("--comm-debug", rankscope.script(SUM), env=env, timeout_s=200)
    assert ended.code == 0, ended.lines()[-30:]
    files = sorted((ended.run_dir / "comm").glob("nccl-*.log"))
    assert len(files) == 2
    assert all("NCCL INFO" in file.read_text(errors="replace") for file in files)
    assert (ended.run_dir / "comm" / "nccl-graph.xml").read_text().startswith("<")
