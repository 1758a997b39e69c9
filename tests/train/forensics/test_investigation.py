"""A bad step looked into: where it began, the report, the files, the replay."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import bad_models
import numpy as np
import pytest
import torch
from bad_models import (
    FIRST_SAMPLE,
    Model,
    fine,
    infinite_gradient,
    kept_step,
    nan_in_row_1,
    repeatable,
    seeded,
)
from torch import Tensor

from rankscope.errors import UsageError
from rankscope.train.forensics.dump import read_arrays, read_step
from rankscope.train.forensics.findings import BadTensor, Incident, RankFindings, concluded, from_plain, to_plain
from rankscope.train.forensics.investigation import Investigation
from rankscope.train.forensics.replaying import replay_saved
from rankscope.train.forensics.report import headline, report

NAN = float("nan")


def investigated(model: Model, folder: Path) -> tuple[Incident, str]:
    said: list[str] = []
    kept = kept_step(model)
    looking = Investigation(repeatable(model), place="GPU 6", directory=folder, context={"layers": 2})
    return looking.run(kept, NAN, NAN, said.append), said[0]


def replayed(model: Model, file: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    return replay_saved(file, lambda _saved: repeatable(model), said.append), said


def test_the_module_that_made_it_and_the_very_sample_are_named(tmp_path: Path) -> None:
    incident, text = investigated(seeded(fine, nan_in_row_1, fine), tmp_path)
    assert incident.kind == "loss"
    assert incident.origins == (0,)
    first = incident.shown.first
    assert first is not None
    assert (first.module, first.kind, first.what) == ("blocks.1", "Block", "output")
    assert first.samples == (FIRST_SAMPLE + 1,)
    assert "First: the output of blocks.1 (Block): 32 NaN and 0 Inf of 96 values, shape [3, 4, 8]" in text
    (line,) = [line for line in text.splitlines() if line.startswith("Called at: ")]
    assert line.startswith(f"Called at: {Path(bad_models.__file__)}:")
    assert line.endswith(", in forward")
    assert headline(incident) == "NaN loss in step 7, begun on rank 0, the output of blocks.1 (Block)"


def test_a_value_that_goes_bad_between_two_modules_is_blamed_on_the_code_around_them(tmp_path: Path) -> None:
    model = seeded(fine)
    model.embed.register_forward_hook(lambda _module, _inputs, output: output * 1e30)
    block = model.blocks[0]
    block.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 1e30,))
    incident, text = investigated(model, tmp_path)
    assert incident.kind == "loss"
    assert "the arithmetic of" in text
    first = incident.shown.first
    assert first is not None
    assert first.what == "input"


def test_a_backward_pass_that_goes_bad_after_a_finite_forward_pass_is_a_bad_gradient(tmp_path: Path) -> None:
    incident, text = investigated(seeded(fine, infinite_gradient, fine), tmp_path)
    assert incident.kind == "gradient"
    assert incident.shown.first is None
    where = incident.shown.first_backward
    assert where is not None
    assert where.what == "gradient"
    assert where.module in ("blocks.0", "blocks.1.mix")  # what blocks.1 hands back to what it was made from
    names = [tensor.name for tensor in incident.bad_gradients]
    assert names[0] == "embed.weight"  # in the order of the forward pass
    assert "blocks.2.mix.weight" not in names
    assert "GRADIENT DETECTED [GPU 6]" in text


def test_a_weight_that_was_bad_before_the_step_is_a_bad_parameter(tmp_path: Path) -> None:
    model = seeded(fine, fine)
    with torch.no_grad():
        dict(model.named_parameters())["blocks.1.mix.weight"][2, 3] = float("inf")
    incident, text = investigated(model, tmp_path)
    assert incident.kind == "parameter"
    assert [tensor.name for tensor in incident.shown.bad_parameters] == ["blocks.1.mix.weight"]
    assert "Inf count: 1/64" in text


def test_the_report_has_the_form_that_people_know(tmp_path: Path) -> None:
    _, text = investigated(seeded(nan_in_row_1), tmp_path / ".checkpoints")
    lines = text.splitlines()
    assert lines[:6] == ["=" * 80, "NaN LOSS DETECTED [GPU 6]", "=" * 80, "Step: 7", "Loss: nan", "Gradient Norm: nan"]
    at = lines.index("PROBLEMATIC TENSORS:")
    assert (lines[at - 1], lines[at + 1]) == ("=" * 40, "=" * 40)
    assert lines[at + 2] == "⚠️  Gradients with NaN (7 layers):"
    assert lines[at + 3] == "  • embed.weight (shape: torch.Size([16, 8]))"
    assert lines[at + 4] == "    Grad values: ['NaN', 'NaN', 'NaN', 'NaN', 'NaN', ...]"
    assert lines[at + 5].startswith("    NaN count: ")
    assert "Total layers with NaN gradients: 7" in lines
    assert any(line.startswith("Affected layers: ['embed.weight', 'blocks.0.norm.weight', ") for line in lines)
    assert f"Checkpoint saved: {tmp_path}/.checkpoints/nan_grad_step_7.pt" in lines
    assert f"Debug tensors saved: {tmp_path}/.checkpoints/debug/nan_debug_step_7.pkl" in lines


def test_the_saved_tensors_are_read_by_plain_pickle_and_numpy(tmp_path: Path) -> None:
    model = seeded(nan_in_row_1)
    investigated(model, tmp_path)
    with (tmp_path / "debug/nan_debug_step_7.pkl").open("rb") as file:
        content = pickle.load(file)
    assert not any(np.isnan(value).any() for value in content["parameters"].values())
    bad = {name: np.isnan(value).sum() / value.size for name, value in content["gradients"].items()}
    assert bad["head.weight"] == 1.0
    assert np.array_equal(content["parameters"]["head.weight"], model.head.weight.detach().numpy())
    assert from_plain(content["incident"]).shown.first is not None


def test_the_same_tensors_are_there_as_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    model = seeded(nan_in_row_1)
    investigated(model, tmp_path)
    with safetensors.safe_open(tmp_path / "debug/nan_debug_step_7.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("parameters.embed.weight"), model.embed.weight)
        assert torch.isnan(file.get_tensor("gradients.head.weight")).all()
        assert json.loads(file.metadata()["incident"])["kind"] == "loss"


class Harmful:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return (print, ("this must never run",))


def test_a_foreign_pickle_is_refused_without_running_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nan_debug_step_1.pkl"
    file.write_bytes(pickle.dumps({"parameters": Harmful(), "gradients": {}}))
    with pytest.raises(UsageError, match=r"it asks for builtins\.print"):
        read_arrays(file)
    assert capsys.readouterr().out == ""
    investigated(seeded(nan_in_row_1), tmp_path)
    assert read_arrays(tmp_path / "debug/nan_debug_step_7.pkl")["step"] == 7


def test_the_replayed_step_names_the_same_module(tmp_path: Path) -> None:
    investigated(seeded(fine, nan_in_row_1), tmp_path)
    other = Model(fine, nan_in_row_1)  # other weights: those of the file are taken
    code, said = replayed(other, tmp_path / "nan_grad_step_7.pt")
    assert code == 76
    assert said[0] == "step 7 of rank 0, samples 100, 101, 102, 103, 104, 105"
    assert said[-1].startswith("first module whose output is not finite: the output of blocks.1 (Block): ")
    assert said[-1].endswith("; micro batch 0, samples 101")
    assert torch.equal(other.head.weight, seeded(fine, nan_in_row_1).head.weight)


def test_a_replay_that_stays_finite_says_so(tmp_path: Path) -> None:
    investigated(seeded(fine, nan_in_row_1), tmp_path)
    code, said = replayed(seeded(fine, fine), tmp_path / "nan_grad_step_7.pt")
    assert code == 0
    assert "the step is finite this time" in said[-1]


def test_a_file_of_another_model_or_kind_is_refused(tmp_path: Path) -> None:
    investigated(seeded(fine, nan_in_row_1), tmp_path)
    with pytest.raises(UsageError, match=r"written by another model: blocks\.1\.norm\.weight does not fit"):
        replayed(seeded(fine), tmp_path / "nan_grad_step_7.pt")
    with pytest.raises(UsageError, match="there is no file"):
        read_step(tmp_path / "missing.pt")
    with pytest.raises(UsageError, match="cannot be read as a saved step"):
        read_step(tmp_path / "debug/nan_debug_step_7.pkl")
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="is not a saved step"):
        read_step(tmp_path / "other.pt")


def test_files_that_cannot_be_written_do_not_hide_the_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, text = investigated(seeded(nan_in_row_1), tmp_path / "file")
    assert "NaN LOSS DETECTED" in text
    assert f"Checkpoint not saved: {tmp_path}/file/nan_grad_step_7.pt (" in text
    assert f"Debug tensors not saved: {tmp_path}/file/debug/nan_debug_step_7.pkl (Not a directory)" in text


def rank(number: int, **changes: object) -> RankFindings:
    usual: dict[str, object] = {
        "rank": number,
        "place": f"GPU {number}",
        "loss_then": 4.0,
        "loss_again": 4.0,
        "samples": (number,),
        "bad_inputs": (),
        "bad_parameters": (),
        "first": None,
        "first_backward": None,
        "bad_gradients": (),
    }
    return RankFindings(**{**usual, **changes})  # type: ignore[arg-type]


SPREAD = [BadTensor("head.weight", (4,), 4, 0, 4, ("NaN",))]


def test_only_the_rank_whose_own_values_were_bad_is_blamed() -> None:
    incident = concluded(5, NAN, NAN, [rank(0), rank(1, loss_then=NAN, loss_again=NAN)], SPREAD)
    assert (incident.kind, incident.origins, incident.shown.rank) == ("loss", (1,), 1)
    incident = concluded(5, 4.0, NAN, [rank(0), rank(1, bad_gradients=tuple(SPREAD))], SPREAD)
    assert (incident.kind, incident.origins) == ("gradient", (1,))


def test_a_sum_that_overflows_is_nobodys_fault() -> None:
    incident = concluded(5, 4.0, float("inf"), [rank(0), rank(1)], SPREAD)
    assert (incident.kind, incident.origins) == ("gradient", ())
    text = report(incident, [])
    assert "No rank's own computation shows it." in text
    assert "their sum is not: it overflowed" in text
    assert "begun on no single rank" in headline(incident)


def test_a_step_that_is_finite_when_repeated_still_blames_the_rank_whose_loss_was_bad() -> None:
    incident = concluded(5, NAN, NAN, [rank(0), rank(1, loss_then=NAN)], [])
    assert (incident.kind, incident.origins, incident.reproduced) == ("loss", (1,), False)
    assert "The step was repeated, without compiled kernels, and stayed finite" in report(incident, [])


def test_an_incident_survives_being_written_as_json() -> None:
    incident = concluded(5, NAN, float("-inf"), [rank(0), rank(1, loss_then=NAN)], SPREAD)
    again = from_plain(json.loads(json.dumps(to_plain(incident), allow_nan=False)))
    assert repr(again) == repr(incident)


def test_no_tensor_is_called_bad_that_is_finite() -> None:
    class Seen(Model):
        def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return super().forward(inputs, targets)

    from rankscope.train.forensics.inspection import Inspection

    model = Seen(fine, fine)
    inspection = Inspection(model)
    kept = kept_step(model)
    repeatable(model).gradients(0, inspection.following(list(kept.batches)))
    inspection.close()
    assert inspection.first is None
    assert inspection.first_backward is None
    assert inspection.bad_gradients == ()
