"""Of steps that follow each other fast most are watched for what must be known of every step, and no more."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from rankscope.evidence.model import NonFinite
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.probe import parameters
from rankscope.probe.calls import CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.page import Page
from rankscope.probe.phases import PhaseClock
from rankscope.probe.rhythm import Rhythm
from rankscope.probe.shortcuts import quick

NEVER = 2**63


class Job:
    """A training loop over a replicated model, with what the probe puts before torch's own functions."""

    def __init__(self, folder: Path, inputs: int = 4, hidden: int = 8) -> None:
        torch.manual_seed(0)
        self.inputs = inputs
        self.page = Page(str(folder / "0-1.page"), 0)
        self.clock = PhaseClock(self.page)
        self.beat = self.clock.beat
        self.checks = FiniteChecks(self.page, self.clock)
        self.checks.start(torch)
        network = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.model = nn.parallel.DistributedDataParallel(network)
        self.checks.replicated(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        first = cast(Any, SimpleNamespace(done_with_batches=True))
        rhythm = Rhythm(self.page, CallRecorder(self.page), first, self.clock, self.checks)
        self.loader = SimpleNamespace(_num_workers=0)
        self.next_batch = rhythm.next_batch(lambda iterator: iterator.batch)
        self.before_forward = rhythm.before_forward(lambda _model, *_inputs, **_kwargs: None)
        self.run_backward = rhythm.backward(lambda losses, gradients=None: torch.autograd.backward(losses, gradients))
        self.before_step = rhythm.before_step()
        self.after_step = rhythm.after_step()
        while self.beat.full:
            self.step()
        self.beat.due = NEVER

    def fetch(self, batch: Any) -> Any:
        self.loader._num_yielded, self.loader.batch = self.page.batches, batch
        return self.next_batch(self.loader)

    def forward(self, inputs: torch.Tensor, **seen: Any) -> torch.Tensor:
        """`seen` is what the model is called with by name, in the eyes of the probe."""
        self.before_forward(self.model, *(() if seen else (inputs,)), **seen)
        return cast(torch.Tensor, self.model(inputs))

    def apply(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        optimizer = optimizer or self.optimizer
        self.before_step(optimizer, (), {})
        optimizer.step()
        self.after_step(optimizer, (), {})
        optimizer.zero_grad()

    def step(self, *, bad_input: bool = False) -> None:
        inputs, _labels = self.fetch([good(bad_input, self.inputs), torch.zeros(6)])
        self.passes(inputs)
        self.apply()

    def passes(self, *inputs: torch.Tensor) -> None:
        for each in inputs:
            self.run_backward((self.forward(each).pow(2).mean(),))

    def notes(self) -> tuple[NonFinite, ...]:
        content = read_page(Path(self.page.path)).progress
        assert content.probe_errors == ()
        return content.non_finite


def good(spoiled: bool = False, width: int = 4) -> torch.Tensor:
    values = torch.randn(6, width)
    if spoiled:
        values[4, 1] = math.nan
    return values


def infinite(width: int = 4) -> torch.Tensor:
    """Tanh hides it: the loss is finite, and so are all gradients but that of the first weight."""
    values = good(width=width)
    values[4, 1] = math.inf
    return values


@pytest.fixture(params=["shortcuts", "python"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    if request.param == "python":
        monkeypatch.setattr("rankscope.probe.beat.quick", None)
        monkeypatch.setattr("rankscope.probe.calls.quick", None)
    elif quick is None:
        pytest.skip("the shortcuts were not compiled: no compiler")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Job(tmp_path, *getattr(request.function, "sizes", ()))
    dist.destroy_process_group()
    # The group goes with the model, and waits for its thread with the GIL held: that one must be done with Python.
    time.sleep(0.05)


def test_sample_that_spoils_a_fast_step_is_found_in_its_batch(job: Job) -> None:
    for _ in range(3):
        job.step()
    assert not job.beat.full
    at = job.page.steps
    job.step(bad_input=True)
    (note,) = job.notes()
    assert (note.kind, note.step, note.local) == ("input", at, True)
    assert note.tensors == ("batch[0]", "input[0]")
    assert "in sample 4 of 6" in note.detail


@pytest.mark.parametrize("batch", ["tensor", "dict", "mixed"])
def test_batches_of_any_make_are_remembered(job: Job, batch: str) -> None:
    inputs = good(True)
    given, name = {
        "tensor": (inputs, "batch"),
        "dict": ({"x": inputs, "id": 3}, "batch['x']"),
        "mixed": (["a name", inputs], "batch[1]"),
    }[batch]
    job.fetch(given)
    job.run_backward((job.forward(inputs).pow(2).mean(),))
    job.apply()
    assert job.notes()[0].tensors == (name, "input[0]")


def test_inputs_by_name_are_remembered(job: Job) -> None:
    inputs = good(True)
    for scale in (torch.ones(1), 2.0):
        loss = job.forward(inputs, x=inputs, scale=scale).pow(2).mean()
        suspicion = job.checks._of_input(job.page.steps, ())
        assert suspicion is not None
        assert suspicion.tensors == ("input[0]",)
        assert suspicion.detail == "1 of 24 values of input[0], in sample 4 of 6 in the batch"
        job.checks.batches.fed.clear()
    del loss


def test_collections_within_a_batch_are_looked_into_when_it_matters(job: Job) -> None:
    fields = OrderedDict(x=good(True), other=torch.zeros(3))
    job.forward(fields["x"], fields=fields)
    assert not job.beat.full
    job.run_backward((job.model(fields["x"]).pow(2).mean(),))
    job.apply()
    assert job.notes()[0].tensors == ("input[0]['x']",)


def test_input_that_the_program_itself_does_not_keep_is_looked_at(job: Job) -> None:
    job.passes(good(True) / 2)
    job.apply()
    (note,) = job.notes()
    assert (note.kind, note.tensors) == ("input", ("input[0]",))


def test_inputs_are_kept_for_some_passes_and_then_let_go(job: Job) -> None:
    def passed() -> weakref.ref[torch.Tensor]:
        inputs = good() / 2
        job.passes(inputs)
        return weakref.ref(inputs)

    job.beat.hold(2)
    first, second = passed(), passed()
    assert first() is not None
    passed()
    assert first() is None
    assert second() is not None
    job.beat.hold(0)
    assert second() is None
    assert passed()() is None


def test_newest_inputs_stay_when_fewer_are_kept(job: Job) -> None:
    job.beat.hold(0)
    for passes, left in ((5, []), (5, [0, 1, 2]), (8, [0, 1, 2]), (2, [1, 2]), (1, [2]), (3, [2]), (0, [])):
        job.beat.hold(passes)
        assert [step for step, _ in job.beat.kept] == left
        if not left and passes:
            for step in range(3):
                job.beat.inputs = (good(),)
                job.beat.pass_over(step)
    job.beat.hold(3)
    for step in range(7):
        job.beat.inputs = (good(),)
        job.beat.pass_over(step)
    assert [step for step, _ in job.beat.kept] == [4, 5, 6]


def shared(size: int) -> torch.Tensor:
    return cast(torch.Tensor, torch.zeros(size).share_memory_())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("inputs", "passes"),
    [
        ((torch.zeros(6, 4), None, 3, "a name"), 8),
        (({"x": [torch.zeros(6)], "length": torch.ones(6, dtype=torch.int64)},), 8),
        ((torch.zeros(3 << 20),), 2),
        ((torch.zeros(9 << 20),), 0),
        ((torch.zeros(6, requires_grad=True),), 0),
        ((shared(6),), 1),
        ((shared(1 << 20),), 0),
        ((torch.zeros(6), object()), 0),
        ((torch.zeros(6, dtype=torch.int64),), 0),
        ((), 0),
    ],
)
def test_inputs_are_kept_where_that_holds_little_alive(tmp_path: Path, inputs: tuple[Any, ...], passes: int) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    checks = FiniteChecks(page, PhaseClock(page))
    checks.start(torch)
    assert checks.batches.passes_to_keep(inputs) == passes


def test_infinite_input_that_a_layer_hides_is_found_with_the_first_gradient(job: Job) -> None:
    job.step()
    at = job.page.steps
    job.passes(infinite())
    job.apply()
    (note,) = job.notes()
    assert (note.kind, note.step, note.value, note.local) == ("input", at, "inf", True)
    assert note.detail.startswith("1 of 24 values of input[0], in sample 4 of 6 in the batch")


def large(test: Any) -> Any:
    """A bias is watched then, and not the weight."""
    test.sizes = (64, 512)
    return test


@large
def test_infinite_input_that_nothing_watched_shows_is_found_a_step_later(job: Job) -> None:
    job.step()
    job.beat.full = False
    at = job.page.steps
    job.passes(infinite(64))
    job.apply()
    assert job.notes() == ()
    job.step()
    found, spoiled = job.notes()
    assert (found.kind, found.step, found.value, found.local) == ("input", at, "inf", True)
    assert found.tensors == ("input[0]",)
    assert "in sample 4 of 6 in the batch; parameters that were not finite after it: 0.weight" in found.detail
    assert found.site[-1].function == "test_infinite_input_that_nothing_watched_shows_is_found_a_step_later"
    assert (spoiled.kind, spoiled.step, spoiled.local) == ("parameter", at + 1, False)
    assert list(job.beat.kept) == []


@large
def test_rank_whose_inputs_were_finite_says_so(job: Job) -> None:
    job.step()
    job.passes(good(width=64))
    with torch.no_grad():
        weight = next(iter(job.model.parameters()))
        weight.grad = torch.full_like(weight, math.nan)  # what the reduction brought
    job.apply()
    job.step()
    (note,) = job.notes()
    assert (note.kind, note.local, note.detail) == ("parameter", False, "what it was fed in the step before was finite")


@large
def test_any_pass_of_the_step_before_may_have_had_it(job: Job) -> None:
    job.step()
    at = job.page.steps
    job.passes(good(width=64), infinite(64), good(width=64))
    job.apply()
    job.step()
    assert [(note.kind, note.step) for note in job.notes()] == [("input", at), ("parameter", at + 1)]


@large
def test_infinities_that_came_in_good_steps_too_are_not_blamed(job: Job) -> None:
    def passes(inputs: torch.Tensor) -> None:
        job.before_forward(job.model, inputs, infinite(64))
        job.run_backward((job.model(inputs).pow(2).mean(),))
        job.apply()

    for _ in range(2):
        passes(good(width=64))
    passes(infinite(64))
    job.step()
    assert job.notes()[0].tensors == ("input[0]",)


def test_bad_loss_of_one_model_is_not_forgotten_over_the_pass_of_another(job: Job) -> None:
    other = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    job.checks.replicated(other)
    at = job.page.steps
    job.run_backward((job.forward(good()).mean() * math.nan,))
    job.run_backward((other(good()).mean(),))
    job.apply()
    (note,) = job.notes()
    assert (note.kind, note.step, note.local) == ("loss", at, True)


def test_backward_passes_of_threads_that_follow_each_other_are_told_apart(job: Job) -> None:
    numbers = []

    def backward() -> None:
        numbers.append(threading.get_native_id())
        job.run_backward((job.model(good()).pow(2).mean(),))

    for _ in range(3):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert [call.thread for call in read_page(Path(job.page.path)).progress.calls[-3:]] == numbers


def test_gradient_of_a_fast_step_below_a_finite_loss_is_seen_before_it_is_reduced(job: Job) -> None:
    job.step()
    at = job.page.steps
    out = job.forward(good())
    job.run_backward(((out - out.detach()).pow(2).sum().sqrt(),))
    assert job.beat.full
    job.apply()
    (note,) = job.notes()
    assert (note.kind, note.step, note.local, note.count) == ("gradient", at, True, 4)


def test_gradient_that_goes_bad_between_two_small_layers_is_seen(job: Job) -> None:
    """The smallest parameter of a small model is its last bias: nothing flows on to there."""
    lower, activation, upper = (layer for layer in job.model.module.children())
    at = job.page.steps
    hidden = activation(lower(good()))
    job.run_backward((upper(hidden + (hidden - hidden.detach()).pow(2).sum().sqrt()).pow(2).mean(),))
    job.apply()
    (note,) = job.notes()
    assert (note.kind, note.step, note.local, note.tensors) == ("gradient", at, True, ("0.weight", "0.bias"))


@pytest.mark.parametrize(
    ("sizes", "chosen"), [((512, 32, 16, 1), 0), ((50_000, 768, 64), 1), ((50_000, 9_000, 20_000), 1)]
)
def test_small_parameter_nearest_to_the_input_is_watched(sizes: tuple[int, ...], chosen: int) -> None:
    model = [nn.Parameter(torch.zeros(size)) for size in sizes]
    assert parameters.sentinel_of(model) is model[chosen]


@pytest.mark.parametrize(
    ("shapes", "chosen"),
    [
        (((200, 512), (200,), (10, 200)), 0),
        (((512, 512), (512,), (10, 512)), 1),
        (((512, 512), (10, 512), (10,)), 0),
        (((50_000, 64), (512, 64), (64,)), 1),
        (((64, 3, 7, 7), (64,)), 0),
    ],
)
def test_large_weight_is_watched_where_nothing_small_shows_as_much(
    shapes: tuple[tuple[int, ...], ...], chosen: int
) -> None:
    model = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    assert parameters.sentinel_of(model) is model[chosen]


def test_gradient_of_a_large_weight_alone_is_seen_before_it_is_reduced(job: Job) -> None:
    weight = nn.Linear(64, 1000, bias=False)
    model = nn.parallel.DistributedDataParallel(weight)
    job.checks.replicated(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(inputs: torch.Tensor) -> None:
        job.run_backward((cast(torch.Tensor, model(inputs)).square().sum(1).sqrt().sum(),))
        job.apply(optimizer)
        job.beat.due = NEVER

    while job.beat.full:
        step(good(width=64))
    at = job.page.steps
    inputs = good(width=64)
    inputs[2] = 0.0  # where a root has no slope
    step(inputs)
    (note,) = job.notes()
    assert (note.kind, note.step, note.local, note.tensors) == ("gradient", at, True, ("weight",))


def test_loss_of_a_fast_step_is_looked_at_where_no_gradient_of_the_model_comes_by(job: Job) -> None:
    elsewhere = torch.ones(1, requires_grad=True)
    job.run_backward(((elsewhere * math.nan).sum(),))
    assert job.beat.full
    assert job.beat.losses is None


def test_bad_loss_over_good_gradients_is_counted_wherever_the_pass_comes_from(job: Job) -> None:
    def backward(value: float) -> None:
        job.run_backward((job.forward(good()).mean() + value,))
        job.apply()

    job.step()
    backward(0.0)
    backward(0.0)
    for value in (math.nan, math.inf):
        backward(value)
        job.beat.full = False
    job.run_backward((job.forward(good()).mean() + math.nan,))  # from another line
    assert read_heartbeat(Path(job.page.path)).bad_losses == 3
    assert job.notes() == ()


@pytest.mark.parametrize("shape", ["expanded", "backwards", "sparse"])
def test_gradients_of_any_make_are_looked_at(job: Job, shape: str) -> None:
    """What cannot be read as it lies in memory goes by torch."""
    weight = nn.Embedding(3, 4, sparse=True) if shape == "sparse" else nn.Linear(4, 8, bias=False)
    model = nn.parallel.DistributedDataParallel(weight)
    job.checks.replicated(model)

    def loss() -> torch.Tensor:
        if shape == "sparse":
            return cast(torch.Tensor, model(torch.tensor([1, 2]))).sum()
        model(good())
        return weight.weight.sum() if shape == "expanded" else (weight.weight.t() * torch.ones(4, 8)).sum()

    for _ in range(4):
        job.run_backward((loss(),))
        job.beat.full = False
    assert weight.weight.grad is not None
    assert job.notes() == ()
    assert job.checks.looking


def test_pass_within_another_leaves_the_loss_of_the_outer_one_to_it(job: Job) -> None:
    side = torch.ones(1, requires_grad=True)
    left = []

    def inner(gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            job.run_backward(((side * 2).sum(),))
        left.append(job.beat.losses)
        return gradient

    out = job.forward(good())
    out.register_hook(inner)  # type: ignore[no-untyped-call]
    losses = (out.pow(2).mean(),)
    job.run_backward(losses)
    assert left == [(losses,)]
    assert job.beat.losses is None


def test_losses_of_several_values_are_no_fault(job: Job) -> None:
    for _ in range(3):
        job.run_backward((job.forward(good()).pow(2),), (torch.ones(6, 1),))
        job.apply()
    assert job.notes() == ()
    assert job.checks.looking


def test_modes_of_the_program_see_nothing_of_the_probe(job: Job) -> None:
    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def seen(backward: Any) -> list[str]:
        loss = job.model(good()).pow(2).mean()
        mode = Seen()
        with mode:
            backward((loss,))
        job.optimizer.zero_grad()
        return mode.names

    job.step()
    assert not job.beat.full
    probed = seen(job.run_backward)
    job.checks.looking = False
    assert probed == seen(torch.autograd.backward)


def test_optimizer_that_is_new_is_looked_at_in_full_and_then_known(job: Job) -> None:
    other = torch.optim.Adam(job.model.parameters())
    job.run_backward((job.forward(good()).pow(2).mean(),))
    job.apply(other)
    assert job.beat.full
    job.run_backward((job.forward(good()).pow(2).mean(),))
    job.apply(other)
    assert id(other) in job.checks.optimizers
    assert not job.beat.full


def test_steps_with_checksums_are_watched_in_full(job: Job) -> None:
    while job.page.steps < 70:
        job.step()
    assert [each.step for each in read_page(Path(job.page.path)).progress.checksums] == [32, 64]


def test_every_backward_pass_is_recorded_with_its_line(job: Job) -> None:
    before = len(read_page(Path(job.page.path)).progress.calls)
    for _ in range(2):
        job.run_backward((job.forward(good()).pow(2).mean(),))
        job.run_backward((job.forward(good()).pow(2).mean(),))
        job.apply()
    calls = read_page(Path(job.page.path)).progress.calls[before:]
    assert [call.op for call in calls] == ["backward"] * 4
    lines = [call.site[0].line for call in calls]
    assert lines == [lines[0], lines[0] + 1] * 2
    assert all(call.left_at is not None and call.depth == 0 for call in calls)


def test_lines_of_passes_in_a_function_that_a_library_calls(job: Job) -> None:
    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    @nothing()
    def passes() -> None:
        for _ in range(2):
            job.run_backward((job.forward(good()).pow(2).mean(),))

    before = len(read_page(Path(job.page.path)).progress.calls)
    passes()
    passes()
    calls = read_page(Path(job.page.path)).progress.calls[before:]
    inner, outer = ([call.site[at].line for call in calls] for at in range(2))
    assert inner == [inner[0]] * 4
    assert outer == [outer[0], outer[0], outer[0] + 1, outer[0] + 1]


def test_waiting_for_batches_is_added_up_over_fast_steps(job: Job) -> None:
    class Slow(SimpleNamespace):
        @property
        def batch(self) -> torch.Tensor:
            time.sleep(0.01)
            return good()

    loader = Slow(_num_workers=0, _num_yielded=1)
    job.next_batch(loader)  # another loader than before
    before, began = job.clock.seconds[0], job.beat.data_ns
    for _ in range(4):
        job.next_batch(loader)
    assert 4 * 10**7 <= job.beat.data_ns - began < 4 * 10**8
    assert job.clock.seconds[0] == before


def test_loader_of_torch_is_counted(job: Job) -> None:
    iterator = iter(DataLoader(cast(Any, torch.randn(8, 4)), batch_size=4))
    advance = Rhythm(
        job.page, CallRecorder(job.page), cast(Any, SimpleNamespace(done_with_batches=True)), job.clock, job.checks
    ).next_batch(type(iterator).__next__)
    before = job.page.batches
    assert torch.is_tensor(advance(iterator))
    assert job.page.batches == before + 1
