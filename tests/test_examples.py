"""Programs to start from: each runs with the real library, tells its stages without a line of ours, unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Ended, Rankscope
from shared_runs import EXAMPLES, LIGHTNING, lightning_run, needs

__all__ = ["lightning_run"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TWELVE = (
    "Script started",
    "Args parsed",
    "Logs directory ready",
    "Tokenizer loaded",
    "Model created",
    "LLMModule ready",
    "DataModule ready",
    "Accelerator configured",
    "WandbLogger ready",
    "MemoryLoggingCallback ready",
    "Trainer ready",
    "Training finished",
)
LINE = re.compile(
    r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\+\d+\.\d{3}s\]\[R(\d)/2\]\[LR\d\]\[PID:\d+\] CHECKPOINT (\d+): ([^(]+?)(?: \(.*\))?"
)


def passed(ended: Ended, rank: int) -> list[str]:
    """The words of the rank's stages, in the order in which they were told; no number comes twice."""
    found = [match for line in ended.err.decode().splitlines() if (match := LINE.fullmatch(line))]
    own = [(int(match[2]), match[3]) for match in found if int(match[1]) == rank]
    assert len({number for number, _ in own}) == len(own), own
    return [words for _, words in own]


def in_order(wanted: tuple[str, ...], got: list[str]) -> bool:
    rest = iter(got)
    return all(word in rest for word in wanted)


def run(rankscope: Rankscope, name: str, *arguments: object) -> Ended:
    ended = rankscope.run("--stages", "on", EXAMPLES / name, *arguments, timeout_s=400)
    assert ended.code == 0, ended.err.decode()
    assert says_nothing_of_us(EXAMPLES / name)
    return ended


def says_nothing_of_us(example: Path) -> bool:
    return "rankscope" not in re.sub(r"`rankscope run`|rankscope run|Rankscope", "", example.read_text())


def test_lightning_with_wandb_tells_the_twelve_checkpoints_in_order_from_every_rank(lightning_run: Ended) -> None:
    assert lightning_run.code == 0, lightning_run.err.decode()
    assert says_nothing_of_us(LIGHTNING)
    for rank in (0, 1):
        words = passed(lightning_run, rank)
        assert in_order(TWELVE, words), words
        assert in_order(("Process group ready", "DDP ready", "First batch loaded", "First forward done"), words)
    told = lightning_run.err.decode()
    assert told.count("About to call WandbLogger constructor...") == 2
    assert told.count("About to call Trainer constructor with strategy=DDPStrategy...") == 2


def test_plain_ddp_prints_the_same_with_and_without_the_probe(rankscope: Rankscope) -> None:
    arguments = (EXAMPLES / "plain_ddp.py", "--debug", "--save", rankscope.folder / "checkpoint.pt")
    with_probe = rankscope.run("--stages", "on", *arguments, timeout_s=200)
    without = rankscope.run("--no-probe", *arguments, timeout_s=200)
    assert (with_probe.code, without.code) == (0, 0)
    for rank in (0, 1):
        for stream in ("stdout", "stderr"):
            assert with_probe.log(rank, stream) == without.log(rank, stream)
    steps = ("First batch loaded", "First forward done", "First backward done", "First optimizer step done")
    assert in_order(("Model created", "DDP ready", *steps, "Checkpoint saved"), passed(with_probe, 0))
    assert in_order(("DDP ready", *steps, "Training finished"), passed(with_probe, 1))


def test_fsdp_tells_its_sharding(rankscope: Rankscope) -> None:
    ended = run(rankscope, "fsdp.py", "--steps", 2)
    for rank in (0, 1):
        assert in_order(
            ("Process group ready", "Model created", "Module sharded", "First forward done", "Training finished"),
            passed(ended, rank),
        )


def test_accelerate_tells_its_accelerator(rankscope: Rankscope) -> None:
    needs("accelerate")
    ended = run(rankscope, "accelerate_loop.py", "--steps", 2)
    for rank in (0, 1):
        assert in_order(
            ("Accelerator configured", "Model created", "Prepared by accelerate", "Training finished"),
            passed(ended, rank),
        )


def test_hugging_face_trainer_tells_tokenizer_dataset_model_and_trainer(rankscope: Rankscope) -> None:
    needs("transformers", "datasets", "accelerate")
    ended = run(rankscope, "hf_trainer.py", "--steps", 2, "--root", rankscope.folder / "outputs")
    for rank in (0, 1):
        assert in_order(
            ("Tokenizer loaded", "Dataset loaded", "Model created", "Trainer ready", "Training finished"),
            passed(ended, rank),
        )
