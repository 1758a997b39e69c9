"""From NCCL to Gloo with a warning, on all ranks together; DDP_BACKEND chooses."""

from __future__ import annotations

import pytest
import torch

from conftest import Rankscope
from rankscope import setup_distributed

ROW = "3.3"
COMMAND_LINE = "DDP_BACKEND=gloo rankscope run train.py"
DIFFERS = (
    "All ranks agree before any of them uses a backend; the notes fall back rank by rank, which leaves "
    "ranks in groups of different backends that wait for each other."
)
ONE_REFUSES = """
import os
import rankscope
from rankscope.distributed import nccl
nccl.why_not_nccl = lambda local: "no such device" if os.environ["RANK"] == "1" else None
made = rankscope.setup_distributed(timeout_s=60)
print("made with", made.backend, made.fell_back)
"""
REAL = """
import os
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
import rankscope, torch
made = rankscope.setup_distributed(timeout_s=90, device=torch.device("cuda", 0))
print("made with", made.backend, made.fell_back)
"""


@pytest.mark.slow
def test_where_one_rank_cannot_all_take_gloo(rankscope: Rankscope) -> None:
    if torch.cuda.is_available():
        pytest.skip("NCCL would be made for real; the test on a GPU does that")
    ended = rankscope.run(rankscope.script(ONE_REFUSES))
    assert ended.out.decode().count("made with gloo True") == 2, ended.lines()
    assert "[DDP-WARNING] NCCL failed (rank 1: no such device), trying Gloo fallback..." in ended.out.decode()
    assert "[DDP-WARNING] Gloo is CPU-based and slower - for debugging only!" in ended.out.decode()


def test_nccl_that_fails_on_every_rank_alone_is_a_fallback_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine with a GPU on which no rank can use NCCL: nobody is left who could, and it was wanted all the same."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDP_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "none9")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    made = setup_distributed(timeout_s=60)
    torch.distributed.destroy_process_group()
    assert (made.backend, made.fell_back, str(made.device)) == ("gloo", True, "cuda:0")
    shown = capsys.readouterr().out
    assert "[DDP-WARNING] NCCL failed (rank 0: this torch was built without NCCL), trying Gloo fallback..." in shown
    assert "[DDP-WARNING] Fell back to Gloo backend (NCCL failed)" in shown
    assert "[DDP-ERROR] NCCL cannot be used on this rank: this torch was built without NCCL\n" in shown
    assert "  NCCL_SOCKET_IFNAME=none9\n" in shown


@pytest.mark.parametrize(("given", "variable"), [(torch.device("cpu"), None), (None, "gloo")])
def test_gloo_that_was_asked_for_is_no_fallback(
    given: torch.device | None,
    variable: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDP_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv("DDP_BACKEND", variable)
    made = setup_distributed(timeout_s=60, device=given)
    torch.distributed.destroy_process_group()
    assert (made.backend, made.fell_back) == ("gloo", False)
    assert "WARNING" not in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("env", "made"), [({}, "nccl False"), ({"NCCL_SOCKET_IFNAME": "none9"}, "gloo True")])
def test_real_nccl_or_all_ranks_on_gloo(rankscope: Rankscope, env: dict[str, str], made: str) -> None:
    """One GPU for two ranks: each calls itself another host. A network interface that is not there breaks NCCL."""
    more = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", **env}
    ended = rankscope.run(rankscope.script(REAL), env=more, timeout_s=200)
    assert ended.out.decode().count(f"made with {made}") == 2, "\n".join(ended.lines())
