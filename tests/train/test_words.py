"""What the trainer says and draws: the log line to the letter, rates, pictures, planted faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rankscope.errors import UsageError
from rankscope.train.fault_plan import FaultPlan, parse_fault
from rankscope.train.flops import peak_flops
from rankscope.train.late_values import LateValues
from rankscope.train.metrics import MetricsFile, Pace, Speeds, StepRecord
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


def test_time_left_is_that_of_the_latest_steps_and_not_of_the_first() -> None:
    pace = Pace()
    assert pace.left(10) is None
    pace.took(100.0)
    assert pace.left(2) == 200.0
    pace.took(1.0)
    pace.took(3.0)
    assert pace.left(10) == 20.0


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
