"""Where gradients are scattered as they are reduced, each rank looks at one of its own before that."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from test_finite import Loop
from torch import nn

from rankscope.evidence.model import NonFinite
from rankscope.evidence.pages import read_page
from rankscope.probe.sharded import ShardedGradients


class Part:
    """Stands for the parameters of one part of the model, as torch reduces them together."""


def trained(folder: Path, own: float, reduced: float) -> tuple[NonFinite, ...]:
    """Three steps of a model of two parts; in the last a rank has `own` in the gradient of its input's part, and the
    reduction leaves `reduced` there."""
    loop = Loop(folder, nn.Linear(4, 1))
    module = ModuleType("_fsdp_param_group")
    module.foreach_reduce = lambda *_args: None  # type: ignore[attr-defined]
    ShardedGradients(loop.checks).watch(module)
    parts = [[Part()], [Part()]]
    for step in range(3):
        loss = loop.model(torch.ones(2, 4)).mean()
        loop.checks.backward_begins(((loss,),))
        loss.backward()
        for part, value in zip(parts, (1.0, own if step == 2 else 1.0), strict=True):
            module.foreach_reduce(part, [torch.full((8,), value)])
        if step == 2:
            for parameter in loop.model.parameters():
                parameter.grad = torch.full_like(parameter, reduced)
        loop.checks.backward_done()
        loop.step()
    return loop.notes()


def test_whatever_torch_hands_over_reaches_its_own_function(tmp_path: Path) -> None:
    """What it cannot read it notes, and the program goes on."""
    loop = Loop(tmp_path, nn.Linear(4, 1))
    module = ModuleType("_fsdp_param_group")
    module.foreach_reduce = lambda *args, **kwargs: (args, kwargs)  # type: ignore[attr-defined]
    ShardedGradients(loop.checks).watch(module)
    part = [Part()]
    assert module.foreach_reduce(part, ["no tensor"]) == ((part, ["no tensor"]), {})
    assert module.foreach_reduce(fsdp_params=part) == ((), {"fsdp_params": part})
    loop.page.step()
    assert module.foreach_reduce(part, ["no tensor"]) == ((part, ["no tensor"]), {})
    [error] = read_page(Path(loop.page.path)).progress.probe_errors
    assert "watching for non-finite values ended" in error


def test_the_rank_whose_own_gradient_went_bad_is_told_from_those_that_got_it(tmp_path: Path) -> None:
    for name in ("own", "got", "well"):
        (tmp_path / name).mkdir()
    began = trained(tmp_path / "own", float("nan"), float("nan"))
    got = trained(tmp_path / "got", 1.0, float("nan"))
    assert [(note.kind, note.step, note.local) for note in began] == [("gradient", 2, True)]
    assert [(note.kind, note.step, note.local) for note in got] == [("gradient", 2, False)]
    assert trained(tmp_path / "well", 1.0, 1.0) == ()
