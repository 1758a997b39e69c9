"""The board's numbers in Prometheus' text format."""

from __future__ import annotations

import re

from rankscope.evidence.glance import RankGlance
from rankscope.evidence.model import Phases, Progress
from rankscope.report.board import Board
from rankscope.report.metrics import metrics


def glance(rank: int, at: float, steps: int, waiting: float, *, alive: bool = True) -> RankGlance:
    phases = Phases(0.0, at, 1, data_s=0.0, forward_s=0.0, backward_s=0.0, waiting_s=waiting, saving_s=0.0)
    progress = Progress("", 0.0, steps, steps, at, 2, 0, calls=(), groups=(), phases=phases)
    return RankGlance(rank, 100 + rank, at, alive, progress=progress)


def test_metrics_hold_steps_speed_shares_stillness_and_the_living() -> None:
    board = Board("train.py")
    board.look([glance(0, 100.0, 10, 50.0), glance(1, 100.0, 10, 0.0)], 100.0)
    look = board.look([glance(0, 104.0, 18, 53.0), glance(1, 104.0, 17, 0.0, alive=False)], 104.0)
    text = metrics(look, {0: 0.25}, None)
    values = dict(re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
    assert values["rankscope_ranks"] == "2"
    assert values["rankscope_ranks_alive"] == "1"
    assert values["rankscope_steps_total"] == "17"
    assert values['rankscope_rank_steps_total{rank="0"}'] == "18"
    assert float(values['rankscope_rank_steps_per_second{rank="0"}']) == 2.0
    assert float(values['rankscope_rank_phase_share{rank="0",phase="waiting"}']) == 0.75
    assert float(values['rankscope_rank_phase_share{rank="0",phase="other"}']) == 0.25
    assert values['rankscope_rank_still_seconds{rank="0"}'] == "0.2"
    assert values['rankscope_verdict{outcome="running",cause="",certainty=""}'] == "1"
    names = re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", text, re.MULTILINE)
    assert {name.partition("{")[0] for name in values} == set(names)
    assert len(set(names)) == len(names)


def test_before_there_are_ranks_there_is_nothing_to_count() -> None:
    assert "rankscope_ranks 0\n" in metrics(Board("train.py").look([], 1.0), {}, None)
