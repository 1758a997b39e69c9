"""docs/verdict.schema.json is made from the code, and every verdict of the corpus fits it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "scripts"), str(REPOSITORY / "zoo")]

import reference  # noqa: E402

from corpus import RECORDED, load_recording  # noqa: E402
from rankscope.diagnosis.attached import nobody_found  # noqa: E402
from rankscope.diagnosis.codec import verdict_to_json  # noqa: E402
from rankscope.report.conclude import conclude, pronounce  # noqa: E402

SCHEMA = json.loads(reference.SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
RECORDINGS = sorted(RECORDED.glob("*/*.json.xz"))


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(verdict_to_json(conclude(look.evidence))) for look in load_recording(path).looks]


def test_the_schema_is_made_from_the_code() -> None:
    assert reference.SCHEMA_FILE.read_text() == reference.schema_text(), "run: python scripts/reference.py --write"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.xz"))
def test_verdict_of_a_recorded_case_fits(path: Path) -> None:
    for verdict in written(path):
        assert [error.message for error in VALIDATOR.iter_errors(verdict)] == []


def test_verdict_on_nothing_fits() -> None:
    assert list(VALIDATOR.iter_errors(json.loads(verdict_to_json(pronounce(nobody_found()))))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "broken"},
        {"cause": "gremlins"},
        {"cause": None},  # a hang has one
        {"schema": 3},
        {"culprits": [{"rank": "one"}]},
        {"exit_codes": {"rank 0": 1}},
        {"facts": [{"kind": "waits-in"}]},
        {"facts": [{"kind": "no-such-fact"}]},
        {"retry": "maybe"},
    ],
    ids=str,
)
def test_what_is_no_verdict_does_not_fit(change: dict[str, Any]) -> None:
    hang = next(each for path in RECORDINGS for each in written(path) if each["outcome"] == "hang")
    assert list(VALIDATOR.iter_errors(hang)) == []
    assert list(VALIDATOR.iter_errors({**hang, **change}))
