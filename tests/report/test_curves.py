"""What a program wrote of its steps, as curves on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_incidents import incident as recorded_incident

from rankscope.evidence.curves import METRICS, Curve, read_curves
from rankscope.report.html.page import render_page
from rankscope.report.views.curves import panels_of, thinned, ticks


def write(folder: Path, *lines: object) -> None:
    (folder / METRICS).parent.mkdir()
    (folder / METRICS).write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))


def test_numbers_of_each_step_are_read_whatever_else_stands_there(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"step": 0, "loss": 3.0, "finite": True, "note": "x"},
        "{torn",
        [1],
        {"loss": 9.0},
        {"step": 1, "loss": None},
        '{"step": 2, "loss": NaN}',
        {"step": 3, "loss": 10**400},
        {"step": 0, "loss": 2.5, "learning_rate": 0.1},
    )
    found = read_curves(tmp_path)
    assert found == (
        Curve("loss", ((0, 2.5), (1, None), (2, None), (3, None))),
        Curve("learning_rate", ((0, 0.1),)),
    )


def test_without_the_file_there_are_none(tmp_path: Path) -> None:
    assert read_curves(tmp_path) == ()
    (tmp_path / METRICS).mkdir(parents=True)
    assert read_curves(tmp_path) == ()


def test_all_share_one_axis_and_what_is_not_finite_is_a_gap_with_a_mark() -> None:
    loss = Curve("loss", ((0, 4.0), (1, 3.0), (2, None), (3, 2.0), (4, 1.0)))
    rate = Curve("learning_rate", ((2, 0.1), (10, 0.2)))
    found = panels_of([rate, loss, Curve("mfu", ((0, 0.5),))])
    assert found is not None
    assert [panel.title for panel in found.panels] == ["Loss", "Learning rate"]
    drawn = found.panels[0]
    assert len(drawn.line) == 2
    assert drawn.line[0].startswith("0.0,")
    assert drawn.line[1].startswith("300.0,"), "step 3 of 0 to 10"
    assert drawn.bad == ((20.0, 2),)
    assert drawn.last == "1"
    assert found.panels[1].line[0].startswith("200.0,")
    assert found.ticks[0] == (0.0, "0")
    assert found.ticks[-1] == (100.0, "10")


@pytest.mark.parametrize("steps", [1, 2, 5000])
def test_page_holds_the_curves_and_their_marks(steps: int) -> None:
    incident = recorded_incident("gloo/eval_batchnorm")
    loss = Curve("loss", tuple((step, None if step == 1 else 1 / (step + 1)) for step in range(steps)))
    page = render_page(replace(incident, name="<b>run</b>", curves=(loss,)))
    assert '<section id="curves">' in page
    assert ("not finite in 1 step<" in page) == (steps > 1)
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    assert page.count("<polyline") == (1 if steps < 3 else 2)
    assert '<section id="curves">' not in render_page(incident)


def test_nothing_finite_is_nothing_to_draw() -> None:
    assert panels_of([Curve("loss", ((0, None),))]) is None


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    points = [(float(x), float(x)) for x in range(10_001)]
    kept = thinned(points)
    assert len(kept) <= 1000
    assert (kept[0], kept[-1]) == (points[0], points[-1])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.0, 2.0), (0.0, 0.0), (-3.0, 17.0), (1e-5, 3e-5), (9.0, 1e6)])
def test_ticks_are_round_and_enclose_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 9
