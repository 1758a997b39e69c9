"""Lines that are said while a job runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankscope.diagnosis.facts.numbers import KeptWaiting
from rankscope.diagnosis.verdict import Culprit, Verdict, Where
from rankscope.report import live
from rankscope.report.words import sentence

CULPRIT = Culprit(1, "node", 7, "rank", Where("/home/me/train.py", 88, "push"), "waiting")
SLOW = KeptWaiting((1,), (0,), 14.2, 0.31, 1.9, "data", None)
HANG = Verdict(2, "hang", "stalled", "proven", (CULPRIT,), (0,), "rank 1 is stuck.", (), (), detected_after_s=1.84)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            live.Detected(HANG, "watch", "--on-hang auto"),
            "HANG, proven after 1.8 s: rank 1 is stuck. (watching on, nothing is stopped (--on-hang auto))",
        ),
        (
            live.Detected(replace(HANG, detected_after_s=None), "watch"),
            "HANG, proven: rank 1 is stuck. (watching on, nothing is stopped)",
        ),
        (
            live.Ending(HANG, "the other ranks"),
            "HANG: rank 1, train.py:88 (stopping the other ranks; the report follows)",
        ),
        (live.Ending(replace(HANG, culprits=()), "the job"), "HANG (stopping the job; the report follows)"),
        (
            live.Ending(HANG, "the job", "--on-hang auto"),
            "HANG: rank 1, train.py:88 (stopping the job (--on-hang auto); the report follows)",
        ),
        (live.Starts("train.py", 8, 1, "runs/x"), "train.py · 8 ranks · runs/x"),
        (live.Starts("/home/me/train.py", 1, 2, "runs/x"), "train.py · 1 rank here, 2 nodes · runs/x"),
        (live.Noticed(HANG), "note: rank 1 is stuck. The job is watched."),
        (live.Slowed(SLOW), f"note: {sentence(SLOW)}. The job goes on."),
        (live.GoesOn(41.7), "the job goes on after 42 s of stillness"),
        (live.LastLook(15), "SIGTERM: taking a last look, then stopping the ranks (again: stop at once)"),
        (live.StoppedAtOnce(), "stopped at once"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_line(line: live.Line, said: str) -> None:
    assert live.words(line).replace("/home/me/", "") == said


def test_control_characters_of_a_job_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in live.words(live.Detected(replace(HANG, headline="rank 1 \x1b[2J is stuck."), "watch"))


def test_whatever_is_shown_may_have_colours_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    live.show(["\x1b[31mred\x1b[0m \x1b]0;title\x07", "\x1b[2Jgone"])
    live.say("quoted \x1b]52;c;ZXZpbA==\x07")
    assert capsys.readouterr().err == "\x1b[31mred\x1b[0m \ngone\nrankscope: quoted \n"
