"""Whole runs of `rankscope train`: strategies agree, SIGTERM is obeyed together, planted faults are named."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import COMMAND, Rankscope, Started, kill

SMALL: dict[str, dict[str, Any]] = {
    "system": {"threads": 1},
    "model": {
        **{"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab_size": 128, "context_length": 32},
        "gradient_checkpointing": False,
    },
    "training": {
        **{"batch_size": 4, "grad_accum_nums": 1, "max_steps": 50, "warmup_steps": 5, "learning_rate": 3e-3},
        "use_amp": False,
    },
    "data": {"source": "random"},
    "checkpoint": {"every": 0, "at_end": False},
    "logging": {"every": 1, "plots": False},
}


def start(rankscope: Rankscope, name: str, *arguments: object, **sections: dict[str, Any]) -> tuple[Started, Path]:
    """A small run; `sections` change its configuration. Gives the run and its folder."""
    folder = rankscope.folder / name
    folder.mkdir()
    config = {key: {**SMALL.get(key, {}), **sections.get(key, {})} for key in {*SMALL, *sections}}
    config["checkpoint"]["dir"] = str(folder / "checkpoints")
    (folder / "config.toml").write_text(as_toml(config))
    run = folder / "run"
    command = (*COMMAND, "train", "--config", folder / "config.toml", "--run-dir", run, *arguments)
    return rankscope.command(*command, env={"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "1"}), run


def as_toml(config: dict[str, dict[str, Any]]) -> str:
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for name, values in config.items()
    )
    return "\n".join(sections) + "\n"


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]


def verdict(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "verdict.json").read_bytes())
    return content


@pytest.mark.slow
def test_ddp_fsdp_and_hsdp_give_the_losses_of_one_process_over_50_steps(rankscope: Rankscope) -> None:
    single, single_run = start(rankscope, "single", "--strategy", "single", training={"batch_size": 8})
    assert single.wait(200.0).code == 0
    expected = losses(single_run)
    assert len(expected) == 50
    for strategy in ("ddp", "fsdp"):
        spread, run = start(rankscope, strategy, "--strategy", strategy, "--nproc-per-node", 2)
        ended = spread.wait(200.0)
        assert ended.code == 0, ended.lines()
        assert losses(run) == pytest.approx(expected, rel=1e-4), strategy
        assert any(line.startswith("R1:INFO | [CPU 1] Step [49/50] | Loss: ") for line in ended.lines())
    # Two groups of two; and everything that only rank 0 does beside the steps changes nothing.
    spread, run = start(
        rankscope,
        "hsdp",
        *("--strategy", "hsdp", "--nproc-per-node", 4),
        system={"shard_size": 2},
        training={"batch_size": 2},
        logging={"wandb": True, "tensorboard": True, "progress_bar": "on"},
        profile={"enabled": True, "first_step": 0, "steps": 1},
    )
    ended = spread.wait(250.0)
    assert ended.code == 0, ended.lines()
    assert losses(run) == pytest.approx(expected, rel=1e-4)
    logs = run / "logs"
    assert list(logs.glob("wandb/offline-run-*/*.wandb"))
    assert list(logs.glob("tensorboard/events.out.tfevents.*"))
    assert json.loads((logs / "profile" / "steps-0.json").read_text())["traceEvents"]
    assert any("50/50  loss" in line for line in ended.lines())


@pytest.mark.slow
def test_sigterm_to_one_rank_saves_and_all_ranks_leave_after_the_same_step(rankscope: Rankscope) -> None:
    started, run = start(rankscope, "stopped", "--nproc-per-node", 2, training={"max_steps": 100_000})
    started.shows("[CPU 0] Step [3/100000]", timeout_s=120.0)
    ranks = {int(rank): pid for rank, pid in json.loads((run / "ranks.json").read_text()).items()}
    kill(ranks[1], signal.SIGTERM)
    ended = started.wait(120.0)
    assert ended.code == 0, ended.lines()
    steps = {rank: [line for line in ended.lines() if f"[CPU {rank}] Step [" in line][-1] for rank in (0, 1)}
    assert steps[0].partition("Step")[2].partition("ETA")[0] == steps[1].partition("Step")[2].partition("ETA")[0]
    (saved,) = (run.parent / "checkpoints").glob("step_*")
    done = int(saved.name.removeprefix("step_"))
    assert f"Step [{done - 1}/100000]" in steps[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome", "cause", "where"),
    [
        ("crash", "crash", "exception", "rankscope/train/faults.py:strike"),
        ("oom", "crash", "out-of-memory-host", "rankscope/train/faults.py:exhaust_memory"),
    ],
)
def test_planted_fault_is_named_with_its_rank_and_its_line_in_the_trainer(
    rankscope: Rankscope, fault: str, outcome: str, cause: str, where: str
) -> None:
    planted = f"{fault}@rank=1,step=3"
    started, run = start(rankscope, fault, "--nproc-per-node", 2, "--fault", planted, training={"max_steps": 8})
    assert started.wait(150.0).code == 1  # the culprit's own, as Python ends a program that raised
    found = verdict(run)
    assert (found["outcome"], found["cause"]) == (outcome, cause), found
    (culprit,) = found["culprits"]
    assert culprit["rank"] == 1
    assert f"{culprit['where']['file']}:{culprit['where']['function']}".endswith(where)
    assert "faults.py" in found["headline"]


@pytest.mark.slow
def test_log_metrics_and_verdict_count_the_same_steps(rankscope: Rankscope) -> None:
    planted = "skip@rank=1,step=5"
    started, run = start(rankscope, "skip", "--nproc-per-node", 2, "--fault", planted, training={"max_steps": 10})
    ended = started.wait(120.0)
    assert ended.code == 75, ended.lines()
    told = re.findall(r"\[CPU 0\] Step \[(\d+)/10\]", ended.out.decode())
    made = len(told)
    assert told == [str(step) for step in range(5)], "those before the planted one"
    assert len(losses(run)) == made
    assert {int(number) for number in re.findall(r"after (\d+) steps", str(verdict(run)))} == {made}
    assert "step 5" not in str(verdict(run)["because"]), "steps are numbered by programs, and counted by us"
