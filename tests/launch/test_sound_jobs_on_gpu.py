"""Sound jobs on a real GPU with NCCL: examples, tensor parallelism and the trainer are never told to be anything else.

One GPU serves all ranks: each calls itself another host, on which it is alone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from conftest import Rankscope

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OVER_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "WANDB_MODE": "offline"}
ALONE = """
import os, runpy, sys
os.environ.update(NCCL_HOSTID="host" + os.environ["RANK"], LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TENSOR_PARALLEL = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (2,))
torch.manual_seed(0)
layers = nn.Sequential(*(nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)) for _ in range(4))).cuda()
for layer in layers:
    parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
for step in range(200):
    inputs = torch.randn(16, 48, generator=torch.Generator().manual_seed(step)).cuda()
    loss = (layers(inputs) - inputs.flip(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print("step", step, loss.item(), flush=True)
dist.destroy_process_group()
"""
PROGRAMS = {
    "plain_ddp.py": ("torch", ("--steps", "300")),
    "fsdp.py": ("torch", ("--steps", "150")),
    "accelerate_loop.py": ("accelerate", ("--steps", "150")),
    "hf_trainer.py": ("datasets", ("--steps", "60")),
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_an_example_is_told_to_be_sound(rankscope: Rankscope, name: str) -> None:
    package, arguments = PROGRAMS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    _is_sound(rankscope, EXAMPLES / name, *arguments)


def test_tensor_parallelism_is_told_to_be_sound(rankscope: Rankscope) -> None:
    _is_sound(rankscope, rankscope.script(TENSOR_PARALLEL, "parallel.py"), nproc=2)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_trainer_is_told_to_be_sound(rankscope: Rankscope, strategy: str) -> None:
    """The trainer gives each rank a GPU of its own: its plan is made for one, and then run by three."""
    first = rankscope.folder / "planned"
    command = (sys.executable, "-m", "rankscope", "train", "--debug", "--max-steps", "40", "--run-dir", first)
    planned = rankscope.command(*command, "--nproc-per-node", "1", "--override", f"system.strategy={strategy}")
    assert planned.wait(150).code == 0
    _is_sound(rankscope, "-m", "rankscope.train.rank", first / "plan.json")


def _is_sound(rankscope: Rankscope, *arguments: object, nproc: int = 3) -> None:
    alone = rankscope.script(ALONE, "alone.py")
    ended = rankscope.run(alone, *arguments, nproc=nproc, env=OVER_SOCKETS, timeout_s=150)
    assert ended.code == 0, ended.lines()[-40:]
    assert ended.verdict["outcome"] == "ok", ended.verdict["headline"]
    assert not any("CORRUPT" in line or "HANG" in line for line in ended.lines()), ended.lines()[-40:]
