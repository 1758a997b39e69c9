"""Values that stop being finite are noted where they began, and only when they reach an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankscope.evidence.model import NonFinite
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.probe import numerics
from rankscope.probe import page as page_module
from rankscope.probe.calls import CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.page import Page
from rankscope.probe.phases import PhaseClock
from rankscope.probe.rhythm import Rhythm


class Loop:
    """A training loop whose hooks are called as the probe would have them called."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.page = Page(str(folder / "0-1.page"), 0)
        self.clock = PhaseClock(self.page)
        self.checks = FiniteChecks(self.page, self.clock)
        self.checks.start(torch)
        self.model = model
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)

    def backward(self, loss: torch.Tensor) -> None:
        self.checks.backward_begins(((loss,),))
        loss.backward()  # type: ignore[no-untyped-call]
        self.checks.backward_done()

    def step(self) -> None:
        self.checks.step_begins(self.optimizer, (), {})
        self.optimizer.step()
        self.page.step()
        self.optimizer.zero_grad()

    def train(self, inputs: torch.Tensor, label: str = "batch") -> None:
        self.checks.fed(label, {"x": inputs})
        self.backward(self.model(inputs).pow(2).mean())
        self.step()

    def notes(self) -> tuple[NonFinite, ...]:
        content = read_page(Path(self.page.path)).progress
        assert content.probe_errors == ()
        return content.non_finite


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    torch.manual_seed(0)
    return Loop(tmp_path, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))


def good() -> torch.Tensor:
    return torch.randn(6, 4)


def test_good_training_leaves_no_note(loop: Loop) -> None:
    for _ in range(40):
        loop.train(good())
    assert loop.notes() == ()
    assert read_heartbeat(Path(loop.page.path)).bad_losses == 0


def test_bad_sample_is_found_in_the_batch(loop: Loop) -> None:
    for _ in range(3):
        loop.train(good())
    bad = good()
    bad[4, 1] = math.nan
    loop.train(bad)
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local, note.value) == ("input", 3, True, "nan")
    assert note.tensors == ("batch['x']",)
    assert "in sample 4 of 6" in note.detail
    assert note.site[0].function in ("backward", "train")
    assert read_heartbeat(Path(loop.page.path)).non_finite == 1


def test_inputs_that_always_held_nan_are_not_blamed(loop: Loop) -> None:
    padded = good()
    padded[:, 3] = math.nan
    for bad in (False, False, True):
        loop.checks.fed("batch", padded)
        out = loop.model(padded.nan_to_num(0.0)).pow(2).mean()
        loop.backward(out * math.inf if bad else out)
        loop.step()
    assert [note.kind for note in loop.notes()] == ["loss"]


def test_infinite_mask_as_input_is_not_blamed(loop: Loop) -> None:
    loop.train(good())
    loop.checks.fed("batch", torch.full((4, 4), -math.inf))
    loop.backward(loop.model(good()).mean() * math.nan)
    loop.step()
    assert [(note.kind, note.step) for note in loop.notes()] == [("loss", 1)]


def test_infinite_value_among_others_is_blamed_where_inputs_are_usually_finite(loop: Loop) -> None:
    bad = good()
    bad[4, 1] = -math.inf
    loop.train(good())
    loop.train(bad)
    (note,) = loop.notes()
    assert (note.kind, note.step, note.value, note.local) == ("input", 1, "-inf", True)
    assert "in sample 4 of 6" in note.detail


def test_inputs_that_always_held_infinities_are_not_blamed(loop: Loop) -> None:
    biases = torch.randn(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    for bad in (False, False, True):
        loop.checks.fed("batch", biases)
        out = loop.model(good()).pow(2).mean()
        loop.backward(out * math.inf if bad else out)
        loop.step()
    assert [note.kind for note in loop.notes()] == ["loss"]


def test_gradient_that_is_not_finite_below_a_finite_loss_names_the_parameters(loop: Loop) -> None:
    loop.train(good())
    out = loop.model(good())
    loss = (out - out.detach()).pow(2).sum().sqrt()
    assert loss.item() == 0.0
    loop.backward(loss)
    loop.step()
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local) == ("gradient", 1, True)
    assert note.tensors == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert note.count == 4


def test_gradient_spoiled_after_the_backward_pass_is_not_called_local(loop: Loop) -> None:
    loop.train(good())
    loop.backward(loop.model(good()).mean())
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    loop.step()
    assert [(note.kind, note.step, note.local) for note in loop.notes()] == [("gradient", 1, False)]


def test_parameter_that_is_not_finite_before_the_first_step_is_found(loop: Loop) -> None:
    with torch.no_grad():
        loop.model[2].bias[0] = math.inf  # type: ignore[index]
    loop.checks.step_begins(loop.optimizer, (), {})
    loop.backward(loop.model(good()).pow(2).mean())
    (note,) = loop.notes()
    assert (note.kind, note.step, note.value, note.tensors) == ("parameter", 0, "inf", ("2.bias",))


def test_step_that_overflows_a_parameter_is_told_at_the_next_loss(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    loop = Loop(tmp_path, model, torch.optim.SGD(model.parameters(), lr=1e37, weight_decay=1e5))
    for _ in range(3):
        loop.backward(loop.model(good()).clamp(-1, 1).mean())
        loop.step()
    assert [(note.kind, note.local) for note in loop.notes()] == [("parameter", False)]


def test_momentum_tells_that_the_gradient_was_bad_first(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    loop = Loop(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loop.train(good())
    loop.backward(model(good()).mean())
    model.weight.grad = torch.full_like(model.weight, math.nan)
    loop.optimizer.step()  # unseen
    loop.page.step()
    loop.backward(model(good()).mean())
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local) == ("gradient", 1, False)
    assert "momentum_buffer" in note.detail


def test_loss_whose_gradients_are_thrown_away_is_counted_and_not_noted(loop: Loop) -> None:
    loop.train(good())
    for _ in range(20):
        loop.backward(loop.model(good()).mean() * math.nan)
        loop.optimizer.zero_grad()
        loop.train(good())
    assert loop.notes() == ()
    assert read_heartbeat(Path(loop.page.path)).bad_losses == 20


def test_suspicion_of_a_discarded_pass_does_not_stick_to_a_later_step(loop: Loop) -> None:
    loop.train(good())
    loop.backward(loop.model(good()).mean() * math.nan)
    loop.optimizer.zero_grad()
    loop.backward(loop.model(good()).mean())
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    loop.step()
    assert [(note.kind, note.local) for note in loop.notes()] == [("gradient", False)]


def test_bad_micro_batch_is_remembered_until_the_step(loop: Loop) -> None:
    loop.train(good())
    loop.backward(loop.model(good()).mean() * math.nan)
    loop.backward(loop.model(good()).mean())
    loop.step()
    assert [(note.kind, note.step, note.local) for note in loop.notes()] == [("loss", 1, True)]


def test_steps_that_a_gradient_scaler_leaves_out_are_healthy(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    left_out = 0
    for _ in range(12):
        before = scaler.get_scale()
        loop.backward(scaler.scale(loop.model(100 * good()).pow(2).mean()))
        scaler.unscale_(loop.optimizer)
        if any(p.grad is not None and not p.grad.isfinite().all() for p in loop.model.parameters()):
            left_out += 1
        else:
            loop.checks.step_begins(loop.optimizer, (), {})
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        assert scaler.get_scale() <= before
    assert left_out > 0
    assert loop.notes() == ()


def test_scaler_of_a_fused_optimizer_decides_by_itself(loop: Loop) -> None:
    loop.train(good())
    loop.backward(loop.model(good()).mean() * math.inf)
    loop.optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    loop.checks.step_begins(loop.optimizer, (), {})
    assert loop.notes() == ()


def test_only_the_first_is_noted(loop: Loop) -> None:
    for _ in range(3):
        loop.train(good() * math.nan)
    assert len(loop.notes()) == 1


def test_losses_inside_a_transformation_have_no_values_and_are_left_alone(loop: Loop) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = (x * x).sum()
        loop.checks.backward_begins(((y,),))
        return y

    assert torch.func.vmap(torch.func.grad(inner))(good()).shape == (6, 4)
    loop.train(good())
    assert loop.notes() == ()


def test_fault_of_the_probe_is_kept_to_itself_and_told(loop: Loop) -> None:
    loop.checks.backward_begins((("no tensor",),))
    loop.train(good())
    (told,) = read_page(Path(loop.page.path)).progress.probe_errors
    assert "watching for non-finite values ended" in told


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_gradient_of_a_replicated_model_is_seen_before_it_is_reduced(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    loop = Loop(tmp_path, model)
    loop.checks.replicated(model)
    loop.train(good())
    out = model(good())
    loop.checks.backward_begins(((out.sum(),),))
    (out - out.detach()).pow(2).sum().sqrt().backward()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)  # what the reduction leaves
    loop.step()
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local) == ("gradient", 1, True)
    assert note.tensors[0] == "0.weight"
    assert note.site[0].function == "test_gradient_of_a_replicated_model_is_seen_before_it_is_reduced"


def replicated(folder: Path) -> tuple[Loop, Callable[[torch.Tensor], None]]:
    """A loop over a replicated model, and its backward passes as the probe has them run."""
    loop = Loop(folder, nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))))
    loop.checks.replicated(loop.model)
    rhythm = Rhythm(loop.page, CallRecorder(loop.page), cast(Any, None), loop.clock, loop.checks)
    run = rhythm.backward(lambda losses: losses[0].backward())
    return loop, lambda loss: run((loss,))


@pytest.mark.usefixtures("one_rank")
def test_loss_of_a_replicated_model_is_looked_at_with_its_first_gradient(tmp_path: Path) -> None:
    loop, backward = replicated(tmp_path)
    for value in (1.0, math.nan):
        inputs = good()
        loop.checks.fed("batch", inputs)
        backward((loop.model(inputs) * value).sum())
        assert loop.clock.beat.losses is None
        loop.step()
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local, note.tensors[0]) == ("loss", 1, True, "0.weight")
    assert note.site[-1].function == "test_loss_of_a_replicated_model_is_looked_at_with_its_first_gradient"


@pytest.mark.usefixtures("one_rank")
def test_loss_whose_gradients_never_come_is_looked_at_all_the_same(tmp_path: Path) -> None:
    loop, backward = replicated(tmp_path)
    elsewhere = torch.ones(1, requires_grad=True)
    backward((elsewhere * math.nan).sum())
    assert read_heartbeat(Path(loop.page.path)).bad_losses == 1
    spent = (elsewhere * math.inf).sum()
    spent.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="second time"):
        backward(spent)
    assert read_heartbeat(Path(loop.page.path)).bad_losses == 2
    assert loop.clock.beat.losses is None


@pytest.mark.usefixtures("one_rank")
def test_backward_pass_inside_another_does_not_hide_the_loss_of_the_outer(tmp_path: Path) -> None:
    loop, backward = replicated(tmp_path)
    inner = (torch.ones(1, requires_grad=True) * 2.0).sum()
    out = loop.model(good())
    out.register_hook(lambda _gradient: backward(inner))
    backward((out * math.nan).sum())
    assert read_heartbeat(Path(loop.page.path)).bad_losses == 1


@pytest.mark.usefixtures("one_rank")
def test_replicas_write_checksums_of_their_parameters_in_turn(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    loop = Loop(tmp_path, model)
    loop.checks.replicated(model)
    for _ in range(97):
        loop.train(good())
    sums = read_page(Path(loop.page.path)).progress.checksums
    assert [(each.step, each.name) for each in sums] == [(32, "bias"), (64, "weight"), (96, "bias")]
    assert sums[-1].value is not None
    assert sums[-1].value > 0


@pytest.mark.usefixtures("one_rank")
def test_replicas_that_step_without_reduction_are_not_compared(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    loop = Loop(tmp_path, model)
    loop.checks.replicated(model)
    for _ in range(40):
        with model.no_sync():
            loop.train(good())
    assert read_page(Path(loop.page.path)).progress.checksums == ()


def test_a_program_may_leave_the_note_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "own_pages", [])
    monkeypatch.setattr(numerics, "own_pages", [])
    assert not numerics.note_non_finite("loss", step=3)
    page = Page(str(tmp_path / "0-1.page"), 0)
    monkeypatch.setattr(numerics, "own_pages", [page])
    assert numerics.note_non_finite("gradient", step=7, tensors=["a.weight", "b.bias"], value="inf", detail="d")
    (note,) = read_page(tmp_path / "0-1.page").progress.non_finite
    assert (note.kind, note.step, note.value, note.local, note.detail) == ("gradient", 7, "inf", True, "d")
    assert (note.tensors, note.count) == (("a.weight", "b.bias"), 2)
    assert note.site[0].file == __file__
