"""The state of the GPUs is looked at while the job stands, and is part of the evidence."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

from conftest import Rankscope

ROW = "4.7"
COMMAND_LINE = "rankscope run train.py"
DIFFERS = "Looked at when the job is seen to stand, not five minutes later, and again while it stands."
HANGS = """
import os
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4, device="cuda"))
if os.environ["RANK"] == "0":
    dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
dist.barrier()
"""
RECORDED = Path(__file__).resolve().parents[2] / "zoo" / "recorded" / "nccl"


def test_recorded_hangs_on_a_gpu_hold_its_state() -> None:
    """Recorded on a GPU: memory, use and who holds it."""
    paths = sorted(RECORDED.glob("*.json.xz"))
    assert paths
    for path in paths:
        looks = json.loads(lzma.decompress(path.read_bytes()))["looks"]
        gpus = [gpu for look in looks for host in look["evidence"]["hosts"] for gpu in host["gpus"]]
        assert gpus, path.name
        assert all(gpu["memory_total_bytes"] and gpu["utilization_percent"] is not None for gpu in gpus), path.name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_hang_has_the_state_of_its_gpu_in_the_evidence(rankscope: Rankscope) -> None:
    env = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    ended = rankscope.run(rankscope.script(HANGS), env=env, timeout_s=200)
    assert ended.verdict["outcome"] == "hang", ended.verdict["headline"]
    folder = ended.run_dir / ended.verdict["evidence"]
    text = "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*.json")))
    assert '"memory_used_bytes"' in text
    assert torch.cuda.get_device_name(0) in text
