"""A process group set up by real ranks: one backend for all, whichever rank fails, and in whichever phase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

# NCCL's own part is the seam: whether a rank can use it, and what happens when the group is made over it.
REFUSED_BY_ONE = """
import os
import rankscope
from rankscope.distributed import nccl
rank = int(os.environ["RANK"])
nccl.why_not_nccl = lambda local_rank: "ncclSystemError: no such device" if rank == 2 else None
made = rankscope.setup_distributed(timeout_s=60)
print("ended in", made.backend, made.fell_back, made.rank, flush=True)
import torch.distributed as dist
dist.barrier()
dist.destroy_process_group()
"""

FAILED_BY_ONE = """
import os
import rankscope
from rankscope.distributed import nccl, setup
from rankscope.distributed.agreement import open_store
rank = int(os.environ["RANK"])
nccl.why_not_nccl = lambda local_rank: None
form = setup.form_group
def form_group(backend, store, place, log, timeout_s):
    if backend == "nccl" and rank == 1:
        raise RuntimeError("NCCL error: unhandled system error")
    if backend == "nccl":
        # As NCCL does: the other ranks wait in the store for what the failed one should have written there.
        open_store(place, timeout_s, serve=False).get("its part of the communicator")
    form(backend, store, place, log, timeout_s)
setup.form_group = form_group
made = rankscope.setup_distributed(timeout_s=60)
print("ended in", made.backend, made.fell_back, made.rank, flush=True)
import torch.distributed as dist
dist.barrier()
dist.destroy_process_group()
"""


def test_nccl_refused_by_one_of_four_ranks_ends_in_gloo_on_all_four(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "off", rankscope.script(REFUSED_BY_ONE), nproc=4, timeout_s=200)
    assert ended.code == 0, ended.err.decode()
    for rank in range(4):
        log = ended.log(rank, "stdout").decode()
        assert f"ended in gloo True {rank}\n" in log
        assert "[DDP-WARNING] NCCL failed (rank 2: ncclSystemError: no such device), trying Gloo fallback..." in log
        assert "backend='nccl')..." not in log


def test_nccl_failing_on_one_of_four_ranks_while_the_group_is_made_ends_in_gloo_on_all_four(
    rankscope: Rankscope,
) -> None:
    ended = rankscope.run("--stages", "off", rankscope.script(FAILED_BY_ONE), nproc=4, timeout_s=200)
    assert ended.code == 0, ended.err.decode()
    for rank in range(4):
        log = ended.log(rank, "stdout").decode()
        assert f"ended in gloo True {rank}\n" in log
        assert "[DDP-WARNING] Fell back to Gloo backend (NCCL failed), on all ranks" in log
    assert "Traceback" in ended.log(1, "stdout").decode()


def test_single_process_needs_no_launcher_and_tells_each_step(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import rankscope\nmade = rankscope.setup_distributed()\nprint(made.rank, made.world_size)\n"
        "import torch.distributed as dist\ndist.destroy_process_group()\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    ended = subprocess.run(
        [sys.executable, str(script)], env=clean, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "[DDP-DEBUG] setup_distributed() called"
    assert "[DDP-DEBUG] Attempting dist.init_process_group(backend='gloo')..." in lines
    assert "[DDP-DEBUG] First all-reduce: the sum is right" in lines
    assert lines[-1] == "0 1"


def test_failure_ends_the_program_with_the_code_of_its_phase(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import rankscope\nrankscope.setup_distributed()\n")
    variables = {**os.environ, "RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    variables["NCCL_SOCKET_IFNAME"] = "eth7"
    ended = subprocess.run(
        [sys.executable, str(script)], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 80
    assert "[DDP-ERROR] environment: RANK='x' is not a number" in ended.stdout
    assert "Traceback" in ended.stdout
    assert "  NCCL_SOCKET_IFNAME=eth7" in ended.stdout
    assert ended.stderr == ""
