"""docs/verdict.md says what the code says, and every fact has words."""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

import pytest  # noqa: E402
import reference  # noqa: E402

from rankscope.diagnosis.causes import CAUSES  # noqa: E402
from rankscope.diagnosis.facts import FACTS, Fact  # noqa: E402
from rankscope.diagnosis.registry import RULES  # noqa: E402
from rankscope.report import conclude  # noqa: E402, F401  registers all rules
from rankscope.report.words import has_words  # noqa: E402
from rankscope.report.words.advice import ADVICE  # noqa: E402


def test_the_page_is_made_from_the_code() -> None:
    text = reference.PAGE.read_text()
    assert reference.page(text) == text, "run: python scripts/reference.py --write"


def test_every_fact_has_words_and_says_what_it_is() -> None:
    assert [kind for kind, fact in FACTS.items() if not has_words(fact)] == []
    assert [kind for kind, fact in FACTS.items() if not (fact.__doc__ or "").strip()] == []
    assert [kind for kind, fact in FACTS.items() if (fact.__doc__ or "").startswith(f"{fact.__name__}(")] == []


def test_a_fact_without_words_would_be_noticed() -> None:
    class Unspoken(Fact, frozen=True):
        pass

    del FACTS["unspoken"]
    assert not has_words(Unspoken)


def test_no_fact_has_a_field_that_would_hide_its_kind() -> None:
    assert [kind for kind, fact in FACTS.items() if "kind" in fact.__struct_fields__] == []


def test_two_facts_of_one_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"two facts of the kind 'waits-in': in rankscope\.diagnosis\.facts\.calls and"):
        type("WaitsIn", (Fact,), {})


def test_a_second_wording_of_an_advice_is_refused() -> None:
    key = next(iter(ADVICE))
    with pytest.raises(ValueError, match=f"two files have words for the advice '{key}'"):
        ADVICE.update({key: "something else"})


def test_every_cause_has_a_rule_that_may_find_it() -> None:
    found = {cause for rule in RULES for cause in rule.causes}
    assert found == set(CAUSES)


def test_every_advice_that_is_given_has_words() -> None:
    given = set()
    for path in (REPOSITORY / "src" / "rankscope").rglob("*.py"):
        given |= set(re.findall(r'Advice\(\s*"([\w-]+)"', path.read_text()))
    assert sorted(given - set(ADVICE)) == []


def test_every_name_of_a_rule_is_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted(set(names))


def test_advice_of_the_table_needs_nothing_to_be_filled_in() -> None:
    for cause in CAUSES.values():
        for key in (*cause.fix, *filter(None, [cause.confirm])):
            assert "{" not in ADVICE[key], key


def test_every_test_that_the_page_on_reliability_names_exists() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 10
    for file, test in named:
        assert f"def {test or 'test_'}" in (REPOSITORY / file).read_text(), f"{file}::{test}"
