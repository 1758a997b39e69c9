"""What is on disk decides: unfinished, damaged, old and foreign checkpoints. No torch here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.errors import UsageError
from rankscope.train.state import manifest as manifests
from rankscope.train.state.directory import CheckpointDirectory, newest, room_for
from rankscope.train.state.manifest import Manifest, TensorForm

EMPTY = Manifest(
    step=0,
    world_size=2,
    parameters={"head.weight": TensorForm((4, 8), "float32")},
    optimizer={"head.weight": {"exp_avg": TensorForm((4, 8), "float32"), "step": TensorForm((), "float32")}},
    loader={"samples": 80},
    extra={},
    saved_at=1.0,
    torch="2.13.0",
    files={},
)


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    opened = CheckpointDirectory(tmp_path / "checkpoints")
    opened.open()
    return opened


def saved(directory: CheckpointDirectory, step: int, keep_last: int = 10) -> Path:
    directory.begin(step)
    (directory.partial(step) / "__0_0.distcp").write_bytes(b"w" * 100)
    files = manifests.sizes(directory.partial(step))
    return directory.publish(replace(EMPTY, step=step, files=files), keep_last)


def chosen_step(directory: CheckpointDirectory) -> int | None:
    found, _ = newest(directory.path)
    return found.manifest.step if found else None


def test_a_manifest_reads_back_as_it_was_written(directory: CheckpointDirectory) -> None:
    folder = saved(directory, 10)
    found = manifests.read(folder)
    assert isinstance(found, manifests.Found)
    assert found.manifest == replace(EMPTY, step=10, files={"__0_0.distcp": 100})


def test_the_newest_complete_checkpoint_is_chosen(directory: CheckpointDirectory) -> None:
    for step in (9, 100, 20):
        saved(directory, step)
    assert chosen_step(directory) == 100


def test_a_checkpoint_that_was_never_finished_is_not_chosen_and_its_room_is_given_back(
    directory: CheckpointDirectory,
) -> None:
    saved(directory, 10)
    directory.begin(20)
    (directory.partial(20) / "__0_0.distcp").write_bytes(b"w" * 50)
    assert chosen_step(directory) == 10

    directory.close()
    CheckpointDirectory(directory.path).open()
    assert sorted(path.name for path in directory.path.iterdir()) == [".lock", "latest", "step_00000010"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "__0_0.distcp").write_bytes(b"w"), "1 bytes instead of 100"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "never completed"),
        (lambda folder: (folder / "manifest.json").write_text('{"schema": 1'), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not of this form"),
        (lambda folder: (folder / "manifest.json").write_text('{"schema": 7}'), "schema 7"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_said(
    directory: CheckpointDirectory, damage: object, said: str
) -> None:
    saved(directory, 10)
    assert callable(damage)
    damage(saved(directory, 20))
    found, sentences = newest(directory.path)
    assert found is not None
    assert found.manifest.step == 10
    assert said in "".join(sentences)


def test_only_the_last_few_are_kept(directory: CheckpointDirectory) -> None:
    for step in (10, 20, 30, 40):
        saved(directory, step, keep_last=2)
    kept = sorted(path.name for path in directory.path.iterdir())
    assert kept == [".lock", "latest", "step_00000030", "step_00000040"]
    assert (directory.path / "latest").resolve().name == "step_00000040"


def test_a_second_job_in_the_same_directory_is_refused(directory: CheckpointDirectory) -> None:
    with pytest.raises(UsageError, match="another job that is still running"):
        CheckpointDirectory(directory.path).open()
    directory.close()
    CheckpointDirectory(directory.path).open()


def test_checkpoints_put_aside_are_neither_chosen_nor_lost(directory: CheckpointDirectory) -> None:
    aside = directory.set_aside([saved(directory, 10), saved(directory, 20)])
    again = directory.set_aside([saved(directory, 10)])
    assert aside is not None
    assert again is not None
    assert chosen_step(directory) is None
    assert [found.manifest.step for found in manifests.complete(aside)[0]] == [10, 20]
    assert [found.manifest.step for found in manifests.complete(again)[0]] == [10]


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"checkpoint\.dir .* cannot be written: Not a directory"):
        CheckpointDirectory(tmp_path / "file" / "checkpoints").open()


def test_a_disk_too_small_for_one_checkpoint_is_refused_before_training(tmp_path: Path) -> None:
    room_for(tmp_path, 1)
    with pytest.raises(UsageError, match=r"has .* free, and one checkpoint of this model takes 1000000000\.0 GB"):
        room_for(tmp_path, 10**18)


def test_the_difference_between_two_models_is_told_by_name_and_shape() -> None:
    here = {"head.weight": TensorForm((4, 16), "float32"), "head.bias": TensorForm((4,), "float32")}
    assert manifests.difference(EMPTY.parameters, EMPTY.parameters) is None
    assert manifests.difference(EMPTY.parameters, here) == "head.weight is 4x8 there and 4x16 here, and 1 more differ"
    assert manifests.difference({}, EMPTY.parameters) == "head.weight is not in it"
    assert manifests.difference(EMPTY.parameters, {}) == "head.weight of it is not in this model"
