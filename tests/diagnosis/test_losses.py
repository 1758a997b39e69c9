"""Where a loss was computed that a line differentiates."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rankscope.diagnosis.source.losses import computed_at, fed_at


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("loss = criterion(model(x), y)\nopt.zero_grad()\nloss.backward()", 1),
        ("loss = f(x)\nloss = loss / 4\nloss.backward()", 1),
        ("loss = f(x)\nloss /= 4\nloss.backward()", 1),
        ("loss = f(x)\nscaler.scale(loss).backward()", 1),
        ("loss = f(x)\naccelerator.backward(loss)", 1),
        ("out, total = f(x)\ntotal.backward()", 1),
        ("total = 0\nfor part in parts:\n    total += g(part)\ntotal.backward()", 3),
        ("f(x).backward()", None),
        ("loss = f(x)\nprint(loss)", None),
    ],
)
def test_the_line_that_computed_what_is_differentiated(body: str, line: int | None) -> None:
    last = len(body.splitlines())
    assert computed_at(ast.parse(body), last) == line
    inside = "def main():\n" + textwrap.indent(body, "    ") + "\n\nloss = None\ntotal = None\n"
    assert computed_at(ast.parse(inside), last + 1) == (None if line is None else line + 1)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("out = model(x)\nloss = criterion(out, y)\nloss.backward()", 1),
        ("loss = criterion(model(x), y)\nloss.backward()", 1),
        ("x = scale(batch)\nout = model(x)\nloss = criterion(out, y).mean()\nloss.backward()", 1),
        ("for x, y in loader:\n    out = model(x)\n    loss = criterion(out, y)\n    loss.backward()", 2),
    ],
)
def test_the_line_on_which_the_batch_entered(body: str, line: int) -> None:
    assert fed_at(ast.parse(body), len(body.splitlines())) == line
