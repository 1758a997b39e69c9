"""Runs that speak Korean: from the first line to the page, with the facts as ever."""

from __future__ import annotations

import json
import re

import pytest

from conftest import COMMAND, Rankscope
from rankscope.report.words.languages import language

pytestmark = pytest.mark.slow
STOPS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(4))
"""
ENGLISH = re.compile(r"\b(because|culprit|victims|waits?|called|skipped|evidence|proven|after|rank \d)\b")
QUOTED = re.compile(r"`[^`]*`|rankscope diagnose \S+|\S+/\S+")


@pytest.fixture(autouse=True)
def as_a_user_starts_it(rankscope: Rankscope) -> None:
    rankscope.options = ()


def test_hang_is_told_in_korean_and_its_facts_are_as_in_english(rankscope: Rankscope) -> None:
    ended = rankscope.run("--lang", "ko", rankscope.script(STOPS))
    assert ended.code == 75
    verdict = ended.verdict
    assert verdict["language"] == "ko"
    assert (verdict["outcome"], verdict["cause"], verdict["certainty"]) == ("hang", "collective-skipped", "proven")
    assert verdict["facts"][0]["kind"] == "first-difference"
    assert "랭크 1이 train.py:6에서 barrier를 불렀다" in verdict["because"]
    said = [line for line in ended.lines() if not line.startswith(("R0", "R1"))]
    assert re.match(r"rankscope: train.py · 랭크 2개 · ", said[0])
    assert any(line.startswith("rankscope: HANG, 입증됨 (") for line in said)
    assert any(line.startswith("  원인") for line in said)
    assert ENGLISH.findall(QUOTED.sub("", "\n".join(said))) == []
    page = (ended.run_dir / "report.html").read_text()
    assert '<html lang="ko">' in page
    assert language("ko").label("Who waits for whom") in page
    again = rankscope.command(*COMMAND, "diagnose", "--json", ended.run_dir).wait()
    english = json.loads(again.out)
    assert english["language"] == "en"
    assert english["facts"] == verdict["facts"]


def test_good_run_is_told_in_the_language_of_the_locale(rankscope: Rankscope) -> None:
    locale = {"RANKSCOPE_LANG": "", "LANG": "ko_KR.UTF-8", "LC_ALL": "", "LC_MESSAGES": ""}
    ended = rankscope.run(rankscope.script("print('done')"), env=locale)
    assert ended.code == 0
    assert ended.lines()[-1].startswith("rankscope: OK, 랭크 2개, ")
