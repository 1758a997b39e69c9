"""Training loops that are compiled, in part or as a whole, do under the launcher what they do under torchrun."""

from __future__ import annotations

import pytest

from conftest import Rankscope

# Twenty steps that are not compiled come first: from then on the steps are fast ones.
SCRIPT = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    if sys.argv[1] == "reducer":
        torch._dynamo.config.optimize_ddp = "python_reducer"
        torch._dynamo.config.compiled_autograd = True
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(240, 8)

    def apply():
        optimizer.step()
        optimizer.zero_grad()

    def train(inputs):
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    if sys.argv[1] != "reducer":
        for inputs in DataLoader(data[:80], batch_size=4):
            train(inputs)
            apply()

    def next_loss(batches):
        return model(next(batches)).square().mean() + model(batches.__next__()).square().mean()

    step = torch.compile({"loader": next_loss, "step": train, "reducer": train}[sys.argv[1]], backend="aot_eager")
    batches = iter(DataLoader(data, batch_size=4))
    for _ in range(25):
        if sys.argv[1] == "loader":
            loss = step(batches)
            loss.backward()
        else:
            loss = step(data[:4])
        apply()
    print(f"loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["loader", "step", "reducer"])
def test_compiled_loop_trains_as_without_the_probe(rankscope: Rankscope, compiled: str) -> None:
    script = rankscope.script(SCRIPT)
    losses = []
    for options in ((), ("--no-probe",)):
        ended = rankscope.run(*options, script, compiled, nproc=2)
        text = (ended.out + ended.err).decode()
        assert ended.code == 0, text
        losses.append([line.split(":", 1)[1] for line in text.splitlines() if ":loss " in line])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
