"""Checkpoints of one process: what comes back, what is refused, and what stays when the disk says no."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_training import Training, same

from rankscope.cli import main
from rankscope.errors import CheckpointNotSaved, UsageError
from rankscope.train.config import CheckpointConfig
from rankscope.train.state.checkpointer import Checkpointer
from rankscope.train.state.export import export
from rankscope.train.state.tensors import shares

said: list[str] = []


@pytest.fixture
def config(tmp_path: Path) -> CheckpointConfig:
    said.clear()
    return CheckpointConfig(dir=str(tmp_path / "checkpoints"), resume="auto")


@pytest.fixture
def checkpointer(config: CheckpointConfig) -> Checkpointer:
    return Checkpointer(config, say=said.append)


def at_step(steps: int, checkpointer: Checkpointer) -> Training:
    training = Training("single")
    training.steps(steps)
    checkpointer.save(steps, training.model, training.optimizer, training.samples, {"scale": 0.1})
    checkpointer.wait()
    return training


def loaded(checkpointer: Checkpointer) -> tuple[int | None, Training]:
    training = Training("single")
    return checkpointer.load_latest(training.model, training.optimizer, training.samples), training


def test_ten_and_ten_steps_give_the_bits_of_twenty(checkpointer: Checkpointer) -> None:
    whole = Training("single")
    whole.steps(20)
    first = Training("single")
    first.steps(10)
    checkpointer.save(10, first.model, first.optimizer, first.samples, {"scale": 0.1})
    first.steps(3)  # while it is being written
    checkpointer.wait()

    step, training = loaded(checkpointer)
    assert step == 10
    assert checkpointer.extra == {"scale": 0.1}
    training.steps(10)
    assert same(training.weights(), whole.weights())
    assert torch.equal(training.model.state_dict()["seen"], whole.model.state_dict()["seen"])


def test_before_the_first_step_there_is_no_optimizer_state_to_save(checkpointer: Checkpointer) -> None:
    whole = Training("single")
    whole.steps(5)
    at_step(0, checkpointer)
    step, training = loaded(checkpointer)
    assert step == 0
    training.steps(5)
    assert same(training.weights(), whole.weights())


def test_weights_that_only_the_optimizer_has_come_back_too(checkpointer: Checkpointer) -> None:
    def mixed() -> tuple[torch.nn.Linear, torch.nn.Parameter, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4, bias=False).bfloat16()
        master = torch.nn.Parameter(model.weight.detach().float())
        return model, master, torch.optim.AdamW([master], lr=1e-3)

    model, master, optimizer = mixed()
    master.grad = torch.ones_like(master)
    optimizer.step()
    checkpointer.save(1, model, optimizer, None)
    checkpointer.wait()
    again, copy, fresh = mixed()
    assert not torch.equal(copy, master)
    assert checkpointer.load_latest(again, fresh) == 1
    assert torch.equal(copy, master)
    assert torch.equal(fresh.state[copy]["exp_avg"], optimizer.state[master]["exp_avg"])


def test_a_checkpoint_of_another_model_is_refused_in_one_line(checkpointer: Checkpointer) -> None:
    at_step(1, checkpointer)
    other = Training("single", width=24)
    with pytest.raises(UsageError) as refused:
        checkpointer.load_latest(other.model, other.optimizer, other.samples)
    line = str(refused.value)
    assert "step_00000001 is a checkpoint of another model: embed.weight is 32x16 there and 32x24 here" in line
    assert "checkpoint.resume=no" in line
    assert "\n" not in line


def test_a_full_disk_leaves_the_previous_checkpoint_and_the_training_alone(
    checkpointer: Checkpointer, config: CheckpointConfig
) -> None:
    kept = at_step(1, checkpointer).weights()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
    try:
        with pytest.raises(CheckpointNotSaved, match=r"the checkpoint of step 2 could not be saved in .*: .*"):
            at_step(2, checkpointer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sum("could not be saved" in line for line in said) == 1
    assert said[-1].endswith("the one of step 1 stays")
    assert sorted(path.name for path in Path(config.dir).iterdir()) == [".lock", "latest", "step_00000001"]

    step, training = loaded(checkpointer)
    assert step == 1
    assert same(training.weights(), kept)
    at_step(3, checkpointer)  # there is room again
    assert loaded(checkpointer)[0] == 3


def test_a_damaged_newest_checkpoint_is_passed_over(checkpointer: Checkpointer, config: CheckpointConfig) -> None:
    at_step(1, checkpointer)
    at_step(2, checkpointer)
    data = next((Path(config.dir) / "step_00000002").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    assert loaded(checkpointer)[0] == 1
    assert any("step_00000002 is left alone" in line for line in said)


def test_a_fresh_start_puts_the_checkpoints_of_the_earlier_run_aside(
    checkpointer: Checkpointer, config: CheckpointConfig
) -> None:
    at_step(30, checkpointer)
    checkpointer.close()
    fresh = Checkpointer(replace(config, resume="no"), say=said.append)
    assert loaded(fresh)[0] is None
    at_step(10, fresh)
    fresh.close()
    assert loaded(Checkpointer(config, say=said.append))[0] == 10
    assert [path.name for path in Path(config.dir).glob("earlier-*/*")] == ["step_00000030"]


def test_going_back_to_an_older_checkpoint_leaves_the_later_ones_out(
    checkpointer: Checkpointer, config: CheckpointConfig
) -> None:
    at_step(1, checkpointer)
    at_step(3, checkpointer)
    checkpointer.close()
    back = Checkpointer(replace(config, resume=f"{config.dir}/step_00000001"), say=said.append)
    assert loaded(back)[0] == 1
    at_step(2, back)
    back.close()
    assert loaded(Checkpointer(config, say=said.append))[0] == 2


@pytest.mark.parametrize("resume", ["nowhere", "empty"])
def test_a_checkpoint_that_is_not_there_is_refused(config: CheckpointConfig, tmp_path: Path, resume: str) -> None:
    (tmp_path / "empty").mkdir()
    asked = Checkpointer(replace(config, resume=str(tmp_path / resume)), say=said.append)
    with pytest.raises(UsageError, match=r"^checkpoint\.resume: .* is not a complete checkpoint: "):
        loaded(asked)


def test_the_exported_weights_are_the_trained_ones(
    checkpointer: Checkpointer, config: CheckpointConfig, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    training = at_step(2, checkpointer)
    (file,) = export(Path(config.dir), tmp_path / "weights", say=said.append)
    content = safetensors.load_file(file)
    assert same({name: content[name] for name in training.weights()}, training.weights())
    assert "weights of step 2 exported" in said[-1]


def test_a_large_model_is_exported_in_several_files_with_an_index(
    checkpointer: Checkpointer, config: CheckpointConfig, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    training = at_step(1, checkpointer)
    *files, index = export(
        Path(config.dir) / "step_00000001", tmp_path, say=said.append, dtype="bfloat16", largest_file=2048
    )
    assert [file.name for file in files] == [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
    places = json.loads(index.read_text())["weight_map"]
    for name, weight in training.weights().items():
        assert torch.equal(safetensors.load_file(tmp_path / places[name])[name], weight.bfloat16())


def test_what_cannot_be_exported_is_one_clear_line(checkpointer: Checkpointer, config: CheckpointConfig) -> None:
    pytest.importorskip("safetensors.torch")
    folder = Path(config.dir)
    with pytest.raises(UsageError, match="no complete checkpoint to export in"):
        export(folder, folder, say=said.append)
    at_step(1, checkpointer)
    with pytest.raises(UsageError, match="as 'fp7'; write one of float32, bfloat16, float16"):
        export(folder, folder, say=said.append, dtype="fp7")


def test_ranks_share_the_writing_evenly() -> None:
    held = {f"layer{number}": torch.empty(100 + number) for number in range(40)}
    taken = shares(held, 4)
    loads = [sum(held[name].nbytes for name, rank in taken.items() if rank == writer) for writer in range(4)]
    assert set(taken) == set(held)
    assert max(loads) - min(loads) < 200 * 4


def test_the_command_exports_the_newest_checkpoint(
    checkpointer: Checkpointer, config: CheckpointConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors.torch")
    at_step(1, checkpointer)
    command = ["train", "--debug", "--override", f"checkpoint.dir={config.dir}", "--export", str(tmp_path / "weights")]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("weights of step 1 exported: ")
    assert (tmp_path / "weights/model.safetensors").is_file()
    assert main(["train", "--debug", "--override", f"checkpoint.dir={tmp_path}", "--export", str(tmp_path)]) == 2
    assert "no complete checkpoint to export" in capsys.readouterr().err
