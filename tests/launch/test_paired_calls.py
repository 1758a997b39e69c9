"""Calls that a backend pairs although they do not belong together, in real jobs; and calls that may differ."""

from __future__ import annotations

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

HEAD = """
import threading
import time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
"""
OTHER_TYPE = """
for step in range(400):
    # Both take four bytes: gloo adds them up.
    counts = torch.ones(16, dtype=torch.int32 if rank == 1 and step == 40 else torch.float32)
    dist.all_reduce(counts)
    dist.barrier()
    time.sleep(0.02)
dist.destroy_process_group()
"""
SHORT = """
for step in range(30):
    counts = torch.ones(16, dtype=torch.int32 if rank == 1 and step == 20 else torch.float32)
    dist.all_reduce(counts)
dist.destroy_process_group()
"""
OTHER_SHARES = """
for step in range(300):
    sends, gets = [32] * world, [32] * world
    if rank == 1 and step >= 60:
        sends, gets = [32, 64, 0], [32, 64, 32]
    rows = torch.empty(sum(gets), 4)
    dist.all_to_all_single(rows, torch.ones(96, 4), gets, sends)
    time.sleep(0.02)
dist.destroy_process_group()
"""
TURNED_ROUND = """
for step in range(400):
    # As many elements, and gloo adds them up in their order.
    few = rank == 1 and step >= 60
    products = torch.ones(32, 64) if few else torch.ones(64, 32)
    dist.all_reduce(products)
    time.sleep(0.02)
dist.destroy_process_group()
"""
LEGITIMATE = """
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
own = dist.new_group([rank], use_local_synchronization=True)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def in_thread(group):
    for _ in range(3):
        dist.all_reduce(torch.ones(4), group=group)

for step in range(120):
    # Root and receivers hand over different things, from different lines.
    if rank == 0:
        dist.scatter(torch.empty(3), [torch.ones(3) for _ in range(world)], src=0)
    else:
        dist.scatter(torch.empty(3), None, src=0)
    dist.gather(torch.ones(2), [torch.empty(2) for _ in range(world)] if rank == 1 else None, dst=1)
    # Objects of any length.
    shared = [None] * world
    dist.all_gather_object(shared, "x" * (step * (rank + 1)))
    box = ["y" * step] if rank == 2 else [None]
    dist.broadcast_object_list(box, src=2)
    # Splits by routing.
    sends = [(rank + peer + step) % 3 for peer in range(world)]
    gets = [(peer + rank + step) % 3 for peer in range(world)]
    dist.all_to_all_single(torch.empty(sum(gets)), torch.ones(sum(sends)), gets, sends)
    # Groups of which a rank may be no member, and groups of the same shape elsewhere.
    for group in pairs:
        dist.all_reduce(torch.ones(5), group=group)
    dist.all_reduce(torch.ones(6 if rank < 2 else 7), group=tp)
    dist.all_reduce(torch.ones(6 if rank % 2 else 7), group=dp)
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=tp)
    dist.barrier(group=own)
    # Two threads, each on a group of its own.
    helper = threading.Thread(target=in_thread, args=(dp,))
    helper.start()
    in_thread(tp)
    helper.join()
    # A pipeline.
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
    elif rank == 1:
        dist.recv(torch.empty(4), src=0)
    # The same elements in another shape.
    shapes = [torch.ones(6, 4), torch.ones(24), torch.ones(6, 1, 4), torch.ones(2, 12)]
    dist.all_reduce(shapes[(rank + step) % 4])
    # One call from two lines, by the data of the rank.
    if (rank + step) % 3:
        dist.all_reduce(torch.ones(9))
    else:
        dist.all_reduce(torch.zeros(9))
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
with Join([model]):
    for _ in range(20 + 10 * rank):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


def test_it_is_told_while_the_job_runs_and_the_job_goes_on(rankscope: Rankscope) -> None:
    script = rankscope.script(HEAD + OTHER_TYPE)
    ended = rankscope.run(script, nproc=3)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["cause"], verdict["certainty"]) == (
        0, "corrupt", "collective-mismatch", "proven",
    )  # fmt: skip
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    assert verdict["victims"] == [0, 2]
    line = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "dist.all_reduce(counts)" in text)
    assert verdict["culprits"][0]["where"]["line"] == line
    assert verdict["detected_after_s"] < 6


def test_the_job_is_stopped_for_it_where_that_was_asked_for(rankscope: Rankscope) -> None:
    ended = rankscope.run("--on-corrupt", "stop", rankscope.script(HEAD + OTHER_TYPE), nproc=3)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["cause"]) == (76, "corrupt", "collective-mismatch")


def test_it_is_told_of_a_job_that_ended_before_anybody_looked(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(HEAD + SHORT), nproc=3)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["cause"]) == (0, "corrupt", "collective-mismatch")
    assert [culprit["rank"] for culprit in ended.verdict["culprits"]] == [1]


def test_shares_of_an_exchange_that_do_not_fit_are_told(rankscope: Rankscope) -> None:
    script = rankscope.script(HEAD + OTHER_SHARES)
    ended = rankscope.run(script, nproc=3)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["cause"]) == (0, "corrupt", "collective-mismatch")
    (culprit,) = ended.verdict["culprits"]
    line = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "all_to_all_single" in text)
    assert (culprit["rank"], culprit["where"]["line"]) == (1, line)
    assert ended.verdict["detected_after_s"] < 6


def test_a_matrix_the_other_way_round_is_told(rankscope: Rankscope) -> None:
    script = rankscope.script(HEAD + TURNED_ROUND)
    ended = rankscope.run(script, nproc=3)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["cause"]) == (0, "corrupt", "collective-mismatch")
    (culprit,) = ended.verdict["culprits"]
    line = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "dist.all_reduce(products)" in text)
    assert (culprit["rank"], culprit["where"]["line"]) == (1, line)
    assert "(32 x 64)" in ended.verdict["headline"]
    assert ended.verdict["detected_after_s"] < 6


def test_calls_that_may_differ_are_not_told(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script(HEAD + LEGITIMATE), nproc=4)
    assert (ended.code, ended.verdict["outcome"]) == (0, "ok"), ended.verdict
