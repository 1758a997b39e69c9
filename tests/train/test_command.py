"""The command line of `rankscope train`, before any rank exists; and one step of every preset."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.train.command import build_parser, check_before_ranks, count_ranks, for_run_of, named_options
from rankscope.train.config import LoggingConfig, RunConfig, SystemConfig, impossibilities, kv_heads
from rankscope.train.fault_plan import parse_fault
from rankscope.train.faults import Fault
from rankscope.train.forensics.watch import FiniteWatch
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place
from rankscope.train.random_tokens import RandomTokens
from rankscope.train.settings import load_config, preset_names
from rankscope.train.spread import SpreadModel, build_model
from rankscope.train.step import TrainStep

CPU = Place(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))


@pytest.mark.parametrize("arguments", [["--help"], ["--debug", "--show-config"]])
def test_help_and_show_config_work_without_importing_torch(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom rankscope.cli import main\n"
        "try:\n    main(['train', *sys.argv[1:]])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "max_steps" in shown.stdout or "--max-steps" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--stratgy", "ddp"], "unrecognized arguments: --stratgy ddp"),
        (["--debug", "--preset", "micro"], "--debug is --preset debug"),
        (["--debug", "--fault", "hnag"], "did you mean 'hang'"),
        (["--debug", "--override", "training.batchsize=3"], "training.batch_size"),
        (["--strategy", "zero3"], "invalid choice: 'zero3'"),
        (["--debug", "--override", "model.heads=3"], "model.width"),
        (["--debug", "--override", "profile.enabled=true"], "profile.first_step is 10, and steps count from 0 to 9"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_options_with_names_of_their_own_come_after_overrides() -> None:
    options = build_parser().parse_args(
        ["--override", "training.max_steps=9", "--max-steps", "3", "--strategy", "fsdp", "--resume", "auto"]
    )
    loaded = load_config("debug", None, options.override, named_options(options))
    config = loaded.config
    assert (config.training.max_steps, config.system.strategy, config.checkpoint.resume) == (3, "fsdp", "auto")
    assert loaded.origin["training.max_steps"] == "--max-steps"


def test_number_of_ranks_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("NUM_GPUS", raising=False)
    assert count_ranks(RunConfig(), None) == (2, "on the CPU, because no GPU is visible", False)
    assert count_ranks(RunConfig(), 3) == (3, "asked for", False)
    assert count_ranks(RunConfig(system=SystemConfig(strategy="single")), None)[0] == 1
    monkeypatch.setenv("NUM_GPUS", "4")
    assert count_ranks(RunConfig(), None)[0] == 4
    with pytest.raises(UsageError, match="no GPU is visible"):
        count_ranks(RunConfig(system=SystemConfig(device="cuda")), None)
    with pytest.raises(UsageError, match="use ddp"):
        count_ranks(RunConfig(system=SystemConfig(strategy="single")), 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("NUM_GPUS")
    assert count_ranks(RunConfig(), None) == (8, "one for each of 8 GPUs", True)
    with pytest.raises(UsageError, match="8 GPUs are visible"):
        count_ranks(RunConfig(), 9)


def reduced(config: RunConfig) -> RunConfig:
    """The same model, narrow, short and shallow enough for a CPU."""
    model = config.model
    groups = model.heads // kv_heads(model)
    return replace(
        config,
        system=replace(config.system, device="cpu", strategy="single"),
        model=replace(
            model,
            layers=2,
            heads=2 * groups,
            kv_heads=2,
            width=16 * groups,
            ffn=None,
            vocab_size=128,
            context_length=16,
        ),
        training=replace(config.training, batch_size=2, grad_accum_nums=min(2, config.training.grad_accum_nums)),
    )


def stepping(config: RunConfig, dtype: torch.dtype = torch.float32) -> tuple[TrainStep, SpreadModel, RandomTokens]:
    """Everything that makes steps of a small model with random tokens, in one process on the CPU."""
    spread = build_model(config, CPU, "single", 128, dtype)
    optimizer = make_optimizer(spread.model, config.training)
    fault, watch = Fault(None, 0, CPU.device), FiniteWatch(CPU.device, 1)
    stepper = TrainStep(spread, optimizer, config.training, CPU.device, 1, fault=fault, watch=watch)
    batches = RandomTokens(
        vocabulary=128,
        context_length=16,
        extra=config.model.multi_token_heads - 1,
        batch_size=2,
        grad_accum_nums=config.training.grad_accum_nums,
        rank=0,
        world_size=1,
        seed=1,
        device=CPU.device,
    )
    return stepper, spread, batches


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_possible_and_makes_a_step(preset: str) -> None:
    config = load_config(preset, None, []).config
    assert impossibilities(config) == []
    stepper, spread, batches = stepping(reduced(config))
    before = spread.model.norm.weight.detach().clone()
    loss, norm, stops, skipped, ended = stepper.run(0, iter(batches), stop_wanted=False).tolist()
    assert loss > 0
    assert norm > 0
    assert (stops, skipped, ended) == (0, 0, 0)
    assert not torch.equal(before, spread.model.norm.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_as_fp32_does_also_on_the_cpu(dtype: torch.dtype) -> None:
    config = reduced(load_config("debug", None, []).config)
    values = []
    for kind in (torch.float32, dtype):
        stepper, spread, batches = stepping(config, kind)
        assert (stepper.loss_scale is not None) == (kind == torch.float16)
        steps = iter(batches)
        values.append(torch.stack([stepper.run(step, steps, stop_wanted=False) for step in range(4)]))
        assert {parameter.dtype for parameter in spread.model.parameters()} == {torch.float32}
    assert torch.allclose(values[0][:, 0], values[1][:, 0], rtol=1e-2)
    assert values[1][:, 3].sum() == 0, "no step was left out"


def test_an_overflow_in_fp16_lowers_the_scale_and_leaves_the_weights_alone() -> None:
    stepper, spread, batches = stepping(reduced(load_config("debug", None, []).config), torch.float16)
    assert stepper.loss_scale is not None
    stepper.loss_scale.value.fill_(2.0**40)
    before = spread.model.norm.weight.detach().clone()
    *_, skipped, ended = stepper.run(0, iter(batches), stop_wanted=False).tolist()
    assert (skipped, ended) == (1, 0)
    assert stepper.loss_scale.value.item() == 2.0**39
    assert torch.equal(before, spread.model.norm.weight)


def test_what_only_one_rank_would_find_out_is_refused_before_there_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"logging\.wandb needs a package that is missing: pip install wandb"):
        check_before_ranks(RunConfig(logging=LoggingConfig(wandb=True)), 2)
    uneven = RunConfig(system=SystemConfig(strategy="hsdp", shard_size=3))
    with pytest.raises(UsageError, match="shard_size=3 does not divide the 4 ranks"):
        check_before_ranks(uneven, 4)
    check_before_ranks(uneven, None)  # nodes that join later may make it even


def test_gpus_are_chosen_by_the_launchers_own_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def choose_gpus(text: str, *, wait: bool, **_say: object) -> None:
        asked.append((text, wait))
        raise UsageError("no more is wanted here")

    monkeypatch.setattr("rankscope.launch.gpu_choice.choose_gpus", choose_gpus)
    monkeypatch.setattr("rankscope.launch.entry.run_prepared", lambda prepare: prepare())
    assert main(["train", "--debug", "--gpus", "auto:2", "--wait"]) == 2
    assert asked == [("auto:2", True)]
    assert "no more is wanted here" in capsys.readouterr().err


def test_game_days_hang_ends_by_itself_unless_told_otherwise() -> None:
    assert for_run_of(parse_fault("hang")) == ("--on-hang", "stop", "--stall-after", "10")
    assert for_run_of(parse_fault("slow")) == for_run_of(None) == ()


def test_random_tokens_are_the_same_samples_for_any_number_of_ranks() -> None:
    def samples(rank: int, world_size: int, batch_size: int) -> list[list[int]]:
        loader = RandomTokens(
            vocabulary=50,
            context_length=8,
            extra=0,
            batch_size=batch_size,
            grad_accum_nums=1,
            rank=rank,
            world_size=world_size,
            seed=1,
            device=CPU.device,
        )
        first = next(iter(loader))
        rows: list[list[int]] = first.inputs.tolist()
        return rows

    assert samples(0, 1, 4) == samples(0, 2, 2) + samples(1, 2, 2)


def test_show_config_of_a_preset_names_where_values_come_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "own.json"
    file.write_text('{\n  "training": {"batch_size": 3}\n}\n')
    assert main(["train", "--preset", "debug", "--config", str(file), "--max-steps", "7", "--show-config"]) == 0
    shown = capsys.readouterr().out
    (batch,) = [line for line in shown.splitlines() if "batch_size" in line]
    assert "own.json:2" in batch
    assert "debug" in shown
