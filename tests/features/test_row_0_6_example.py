"""The Lightning example takes the notes' options, under rankscope run, torchrun and torch.distributed.launch."""

from __future__ import annotations

import sys

import pytest

from conftest import Rankscope
from ports import free_port
from shared_runs import LIGHTNING, needs

ROW = "0.6"
COMMAND_LINE = "python -m torch.distributed.launch --nproc_per_node=2 examples/lightning_wandb.py --fast_dev_run 1"
OPTIONS = ("--fast_dev_run", 1, "--num_workers", 0, "--batch_size", 8, "--max_steps", 5)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("launcher", ["torch.distributed.launch", "torch.distributed.run"])
def test_plain_launchers_start_it_to_its_end(rankscope: Rankscope, launcher: str) -> None:
    needs("lightning", "wandb", "tokenizers")
    command = (sys.executable, "-W", "ignore", "-m", launcher, "--nproc_per_node=2", f"--master_port={free_port()}")
    script = (LIGHTNING, *OPTIONS, "--root", rankscope.folder / "logs")
    ended = rankscope.command(*command, *script).wait(240, gone_within_s=20)
    assert ended.code == 0, ended.err.decode()[-3000:]
    assert "max_steps=1` reached" in (ended.out + ended.err).decode()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_process_is_the_baseline(rankscope: Rankscope) -> None:
    needs("lightning", "wandb", "tokenizers")
    script = (LIGHTNING, *OPTIONS, "--root", rankscope.folder / "logs")
    assert rankscope.command(sys.executable, *script).wait(240, gone_within_s=20).code == 0
