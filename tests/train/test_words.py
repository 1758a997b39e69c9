"""What the trainer says and draws: the log line to the letter, rates, pictures, planted faults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from rankscope.errors import UsageError
from rankscope.train.config import RunConfig
from rankscope.train.fault_plan import FaultPlan, parse_fault
from rankscope.train.flops import peak_flops
from rankscope.train.late_values import LateValues
from rankscope.train.metrics import MetricsFile, Pace, Speeds, StepRecord
from rankscope.train.pictures import curves_of, draw, render_html, render_svg, thinned, ticks
from rankscope.train.voice import Voice, clock, step_line


def record(step: int, loss: float | None = 2.0) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        learning_rate=1e-3,
        grad_norm=1.0,
        finite=loss is not None,
        step_s=0.1,
        tokens=100 * (step + 1),
        tokens_per_s=1000.0 + step,
        tflops_per_device=0.5,
        mfu=None,
        gpu_memory_bytes=None,
        time=0.0,
    )


def test_line_of_a_step_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    Voice("GPU 0").info(step_line(0, 100, 12.234, 1e-5, 2.75648, 330.0))
    assert capsys.readouterr().out == (
        "INFO | [GPU 0] Step [0/100] | Loss: 12.2340 | LR: 1.00e-05 | Grad Norm: 2.7565 | ETA: 5:30\n"
    )


def test_memory_mark_names_host_and_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    Voice("GPU 1").memory("POST-MODEL", (1 << 30, 3 << 29))
    said = capsys.readouterr().out
    assert said.startswith("INFO | [GPU 1] MEM:POST-MODEL | host ")
    assert said.endswith(" GiB | GPU 1.00 GiB, highest 1.50 GiB\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0.0, "0:00"), (330.4, "5:30"), (3930.0, "1:05:30"), (86400.0 * 2 + 61, "2 days 0:01:01")],
)
def test_time_left_is_said_as_a_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_share_of_the_peak_is_unknown_for_an_unknown_device() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989.5e12
    assert peak_flops("NVIDIA H100 PCIe") == 756.5e12
    assert [peak_flops(name) for name in ("Some New Card", "NVIDIA T400 4GB", "RTX 4090 Laptop GPU")] == [None] * 3
    tokens, tera, mfu = Speeds(1000, 2e9, 2, None).rates(0.5)
    assert (tokens, tera, mfu) == (2000.0, 2.0, None)
    assert Speeds(1000, 2e9, 2, 4e12).rates(0.5)[2] == 0.5


def test_metrics_are_json_lines_that_any_reader_accepts(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "deep" / "metrics.jsonl", append=False)
    file.log(record(0))
    file.log(record(1, loss=None))
    file.close()
    first, second = (tmp_path / "deep" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(first)["loss"] == 2.0
    assert json.loads(second, parse_constant=pytest.fail)["finite"] is False


def test_values_come_back_in_order() -> None:
    late = LateValues(torch.device("cpu"))
    for step in range(3):
        late.put(step, torch.tensor([float(step), 1.0]))
    taken = [late.take() for _ in range(len(late))]
    assert [(each.step, each.values) for each in taken] == [(0, [0.0, 1.0]), (1, [1.0, 1.0]), (2, [2.0, 1.0])]
    assert all(each.seconds >= 0 for each in taken)


@pytest.mark.parametrize("steps", [1, 2, 30, 5000])
def test_picture_is_sound_svg_and_the_page_needs_nothing_else(steps: int, tmp_path: Path) -> None:
    records = [record(step, 3.0 / (step + 1)) for step in range(steps)]
    for curve in curves_of(records):
        ElementTree.fromstring(render_svg(curve))
    page = render_html(curves_of(records), records, RunConfig())
    assert "<script" not in page
    assert "http" not in page
    said = draw(records, RunConfig(), tmp_path)
    assert (tmp_path / "report.html").read_text() == page
    assert any("report.html" in line for line in said)


def test_time_left_is_that_of_the_latest_steps_and_not_of_the_first() -> None:
    pace = Pace()
    assert pace.left(10) is None
    pace.took(100.0)
    assert pace.left(2) == 200.0
    pace.took(1.0)
    pace.took(3.0)
    assert pace.left(10) == 20.0


def test_losses_that_are_not_finite_are_left_out_of_the_curve() -> None:
    loss = curves_of([record(0), record(1, None), record(2)])[0]
    assert [x for x, _ in loss.points] == [0, 2]


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    points = [(float(x), float(x)) for x in range(10_001)]
    kept = thinned(points)
    assert len(kept) <= 2000
    assert (kept[0], kept[-1]) == (points[0], points[-1])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.0, 2.0), (0.0, 0.0), (-3.0, 17.0), (1e-5, 3e-5), (9.0, 1e6)])
def test_ticks_are_round_and_enclose_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 9
    assert all(math.isfinite(tick) for tick in found)


def test_fault_is_read_from_the_command_line() -> None:
    assert parse_fault("hang@rank=2,step=7") == FaultPlan("hang", 2, 7)
    assert parse_fault("nan") == FaultPlan("nan", 1, 5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hnag@rank=1", "did you mean 'hang'"),
        ("explode", "there are hang, crash, oom, nan, slow, skip"),
        ("hang@rank=x", "'rank=x' is neither rank=NUMBER nor step=NUMBER"),
        ("hang@when=3", "'when=3' is neither"),
    ],
)
def test_a_mistyped_fault_is_refused_with_the_right_form(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match="--fault") as refused:
        parse_fault(text)
    assert complaint in str(refused.value)
