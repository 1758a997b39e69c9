"""What the probe adds to a step of training, counted: times would tell who else uses the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.probe.shortcuts import quick

# Of steps as almost all are: neither timed, nor one of those whose gradients are all looked at.
JOB = """
import gc, json, math, os, sys
from rankscope.probe import beat, bootstrap
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.phases import PhaseClock
if sys.argv[1] == "python":
    beat.quick = None
bootstrap.start()
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

own = os.path.dirname(bootstrap.__file__) + os.sep
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
clock = next(each for each in gc.get_objects() if type(each) is PhaseClock)
checks = next(each for each in gc.get_objects() if type(each) is FiniteChecks)
counted = []

def count(frame, event, called):
    if frame.f_code.co_filename.startswith(own):
        if event == "call":
            counted[-1].append(frame.f_code.co_name)
        elif event == "c_call":
            counted[-1].append("C " + called.__name__)

@record  # called by a library, as the main function of many programs is
def main():
    for number, inputs in enumerate(loader):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if number == 4:
            clock.beat.full, clock.beat.due, checks._sample_at = False, 2**63, math.inf
        elif number == 6:
            sys.setprofile(count)
        elif number == 13:
            break
        counted.append([])

main()
sys.setprofile(None)
print(json.dumps(counted[7:13]))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("shortcuts", [True, False])
def test_step_comes_by_few_functions_of_the_probe_and_few_operations(tmp_path: Path, shortcuts: bool) -> None:
    if shortcuts and quick is None:
        pytest.skip("the shortcuts were not compiled: no compiler")
    pages = tmp_path / "pages"
    pages.mkdir()
    script = tmp_path / "train.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), "shortcuts" if shortcuts else "python"],
        env=os.environ | {"RANKSCOPE_PAGES": str(pages), "RANK": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    steps = json.loads(done.stdout)
    assert len(steps) == 6
    assert all(sorted(step) == sorted(steps[0]) for step in steps), "a step is like the other"
    functions = [name for name in steps[0] if not name.startswith("C ")]
    operations = [name for name in steps[0] if name in ("C sum", "C item")]
    if shortcuts:
        assert functions == ["method", "_pre_forward"]
        assert operations == []
        return
    named = ["__next__", "_pre_forward", "after_step", "fed", "own_gradient", "step_begins", "wrapper"]
    assert sorted(functions) == named
    assert operations == ["C sum", "C item", "C item"], "of the own gradient, and of the loss"
    assert len(steps[0]) <= 35, steps[0]
