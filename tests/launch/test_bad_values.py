"""Values that go bad on one rank of a fast job are traced to that rank, though every rank has them a step later."""

from __future__ import annotations

import pytest

from conftest import Rankscope

HEAD = """
import time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
"""
TRAIN = """
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
numbers = torch.Generator().manual_seed(rank)
for step in range(80):
    features = torch.randn(16, 64, generator=numbers).abs() + 0.1
    if rank == 1 and step == 57:
        spoil(features)
    optimizer.zero_grad()
    loss = model(features).square().mean()
    loss.backward()
    optimizer.step()
    if step == 57:
        assert loss.isfinite().all()
dist.destroy_process_group()
time.sleep(0.5)
"""

HIDDEN_INFINITY = """
# The gradient that is watched is a bias: 0 * inf is in the weight's alone.
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1))

def spoil(features):
    features[3, 5] = float("inf")
"""
LARGE_GRADIENT = """
# The weight of the first layer is large, and below everything that is small.
class Roots(nn.Module):
    def forward(self, hidden):
        return hidden.square().sum(1, keepdim=True).sqrt()

model = nn.Sequential(nn.Linear(64, 1000, bias=False), Roots(), nn.Linear(1, 1))

def spoil(features):
    features[3] = 0.0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause", "named", "place"),
    [
        (HIDDEN_INFINITY, "nan-input", "input[0]", "features = "),
        (LARGE_GRADIENT, "nan-gradient", "0.weight", "loss.backward()"),
    ],
    ids=["an infinite feature that tanh hides", "a gradient that is bad in a large weight alone"],
)
def test_rank_and_line_are_named(rankscope: Rankscope, program: str, cause: str, named: str, place: str) -> None:
    script = rankscope.script(HEAD + program + TRAIN)
    ended = rankscope.run(script)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["cause"]) == (0, "nan", cause), verdict
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    assert verdict["victims"] == [0]
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if place in text)
    assert verdict["culprits"][0]["where"]["line"] == line
    assert "after 57 optimizer steps" in verdict["headline"]
    assert named in " ".join(verdict["because"])
