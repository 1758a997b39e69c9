"""The words on the terminal: short, aligned, headline first, nothing harmful in them."""

from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Alternative, Culprit, Verdict, Where
from rankscope.report.plain_text import duration, plain
from rankscope.report.terminal import MOST_LINES, render, use_color
from rankscope.report.words.phrases import rank_list, ranks_text
from searching import searched

HANG = Verdict(
    schema=1,
    outcome="hang",
    cause="blocked-call",
    certainty="proven",
    culprits=(
        Culprit(
            2,
            "node-1",
            4121,
            "rank",
            Where("train.py", 88, "push_metrics"),
            "waiting for an answer from 127.0.0.1:9000 in requests.post, no timeout set",
        ),
    ),
    victims=(0, 1, 3),
    headline="rank 2 of 4 is stuck in push_metrics (train.py:88); ranks 0, 1, 3 wait for it.",
    because=(
        "0, 1, 3 entered all_reduce 418; rank 2 left 417 and has entered nothing since",
        "two samples 1 s apart: same stack, no CPU time, no bytes on that socket",
    ),
    fix=("give the request a timeout, or send metrics from a background thread",),
    detected_after_s=1.8,
    world_size=4,
)


def show(verdict: Verdict, width: int = 120, folder: str = "runs/7") -> list[str]:
    return render(verdict, color=False, width=width, folder=folder).split("\n")


def test_a_hang_in_words() -> None:
    assert show(HANG) == [
        "rankscope: HANG, proven after 1.8 s: " + HANG.headline,
        "  culprit   rank 2 (node-1, pid 4121)  train.py:88  push_metrics",
        "            waiting for an answer from 127.0.0.1:9000 in requests.post, no timeout set",
        "  victims   ranks 0, 1, 3",
        "  because   0, 1, 3 entered all_reduce 418; rank 2 left 417 and has entered nothing since",
        "            two samples 1 s apart: same stack, no CPU time, no bytes on that socket",
        "  fix       give the request a timeout, or send metrics from a background thread",
        "  evidence  runs/7  (again: rankscope diagnose runs/7)",
    ]


def test_labels_stay_aligned_when_there_are_alternatives_notes_and_references() -> None:
    lines = show(
        replace(
            HANG,
            alternatives=(Alternative("slow-rank", "possible", "the server may still answer"),),
            notes=("the second attempt",),
            references=("https://example.org/1",),
        )
    )
    assert "  also possible  slow-rank (possible): the server may still answer" in lines
    assert "  note           the second attempt" in lines
    assert "  see            https://example.org/1" in lines
    assert {line[2:17].rstrip() for line in lines[1:]} <= {
        *("", "culprit", "victims", "because", "fix", "also possible", "note", "see", "evidence")
    }


def test_culprits_that_do_the_same_are_one_line() -> None:
    culprits = tuple(
        Culprit(rank, f"node-{rank // 4}", 100 + rank, "rank", Where("train.py", 9 + rank // 7, "f"), "asleep")
        for rank in range(8)
    )
    lines = show(replace(HANG, culprits=culprits))
    assert lines[1] == "  culprit   ranks 0-6 (2 hosts)  train.py:9  f: asleep"
    assert lines[2] == "            rank 7 (node-1, pid 107)  train.py:10  f: asleep"


def test_culprits_at_very_many_places_are_counted() -> None:
    culprits = tuple(Culprit(rank, None, None, "rank", Where("a.py", rank, "f"), "asleep") for rank in range(100))
    lines = show(replace(HANG, culprits=culprits))
    assert lines[4] == "            rank 3  a.py:3  f: asleep"
    assert lines[5] == "            and 96 more at 96 other places"


@pytest.mark.parametrize(
    ("culprit", "text"),
    [
        (Culprit(None, None, None, "launcher", None, "port 29500 is taken"), "the launcher"),
        (Culprit(None, None, None, "rank", None, "never came"), "a rank that never started"),
        (Culprit(1, "a", 5, "dataloader-worker", None, "asleep"), "data-loading worker of rank 1 (a, pid 5)"),
        (Culprit(1, None, 5, "child", None, "asleep"), "child process of rank 1 (pid 5)"),
    ],
)
def test_every_kind_of_culprit_has_a_name(culprit: Culprit, text: str) -> None:
    lines = show(replace(HANG, culprits=(culprit,)))
    assert lines[1] == f"  culprit   {text}"
    assert lines[2].strip() == culprit.doing


def test_an_interrupted_run_has_no_certainty() -> None:
    verdict = replace(
        HANG,
        outcome="interrupted",
        cause=None,
        culprits=(),
        headline="stopped by SIGTERM",
        detected_after_s=None,
    )
    assert show(verdict)[0] == "rankscope: INTERRUPTED: stopped by SIGTERM"


def test_a_good_run_is_one_line_and_its_notes() -> None:
    good = replace(HANG, outcome="ok", cause=None, because=(), started_at=100.0, ended_at=112.34)
    assert show(good) == ["rankscope: OK, 4 ranks, 12.3 s"]
    assert show(replace(good, world_size=1, notes=("rank 0 was slow",))) == [
        "rankscope: OK, 1 rank, 12.3 s",
        "  note  rank 0 was slow",
    ]


def test_long_texts_wrap_below_themselves() -> None:
    lines = show(HANG, width=60)
    assert max(map(len, lines)) <= 67  # The head of the first line is wider than the rest.
    assert lines[1].startswith("    ")
    start = next(index for index, line in enumerate(lines) if "because" in line)
    assert lines[start + 1].startswith(" " * 12)
    assert " ".join(line[12:] for line in lines[start : start + 2]) == HANG.because[0]


def test_too_much_text_loses_the_least_important_first() -> None:
    verdict = replace(
        HANG,
        because=tuple(f"fact {number}: " + "word " * 20 for number in range(6)),
        fix=tuple(f"fix {number}" for number in range(3)),
        notes=tuple(f"remark {number}" for number in range(9)),
        references=("https://example.org/1",),
    )
    text = "\n".join(show(verdict, width=80))
    assert text.count("\n") < MOST_LINES
    assert "https://example.org" not in text
    assert all(f"fix {number}" in text for number in range(3))
    assert "fact 0" in text
    assert "..." not in text
    assert "rankscope diagnose runs/7" in text


def test_one_endless_text_is_cut_and_the_rest_stays() -> None:
    text = "\n".join(show(replace(HANG, because=("word " * 3000, "second fact"))))
    assert text.count("\n") < MOST_LINES
    assert "word ..." in text
    assert "second fact" in text


def test_paths_below_the_current_folder_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    culprit = replace(HANG.culprits[0], where=Where(str(tmp_path / "src" / "train.py"), 88, "push"))
    text = "\n".join(show(replace(HANG, culprits=(culprit,)), folder=str(tmp_path / "runs" / "7")))
    assert " src/train.py:88  push" in text
    assert "rankscope diagnose runs/7" in text
    outside = replace(culprit, where=Where("/elsewhere/train.py", 1, "f"))
    assert "/elsewhere/train.py:1" in "\n".join(show(replace(HANG, culprits=(outside,))))


def test_terminal_escapes_in_the_jobs_texts_are_removed() -> None:
    evil = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 b\x9b2J\r\nrankscope: OK\u202e"
    lines = show(replace(HANG, headline=evil, because=(evil,)))
    assert lines[0] == "rankscope: HANG, proven after 1.8 s: ared b rankscope: OK"


def test_colours_mark_outcome_labels_and_place_and_change_nothing_else() -> None:
    colored = render(HANG, color=True, width=120, folder="runs/7")
    assert "\x1b[1;31mHANG\x1b[0m" in colored
    assert "  \x1b[2mculprit\x1b[0m   " in colored
    assert colored.count("\x1b[1mtrain.py:88\x1b[0m") == 2
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored).split("\n") == show(HANG)
    assert "\x1b[1;33mSLOW" in render(replace(HANG, outcome="slow"), color=True, folder="")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "in_file"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": "", "TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colour_follows_the_usual_variables(
    environment: dict[str, str], on_terminal: bool, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert use_color(Terminal()) is on_terminal
    assert use_color(io.StringIO()) is in_file


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0, 1"),
        ([4, 0, 1, 2], "ranks 0-2, 4"),
        ([5, 6, 8, 9, 10], "ranks 5, 6, 8-10"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_very_many_separate_ranks_are_counted() -> None:
    assert rank_list(range(0, 200, 2), most=3) == "0, 2, 4 and 97 more"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.84, "1.8 s"), (59.99, "1 min 0 s"), (725, "12 min 5 s"), (12_000, "3 h 20 min")]
)
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert duration(seconds) == text


WORDS = st.text(max_size=40) | st.text(alphabet="ab \n\x1b[;m\r\t", max_size=600) | st.just("x" * 500)
CULPRITS = st.builds(
    Culprit,
    rank=st.none() | st.integers(0, 5000),
    host=st.none() | WORDS,
    where=st.none() | st.builds(Where, file=WORDS, line=st.integers(0, 10**6), function=WORDS),
    doing=WORDS,
)
SECONDS = st.none() | st.floats(0, 1e9)
VERDICTS = st.builds(
    Verdict,
    culprits=st.lists(CULPRITS, max_size=12).map(tuple),
    victims=st.lists(st.integers(0, 5000), max_size=50).map(tuple),
    headline=WORDS,
    because=st.lists(WORDS, max_size=9).map(tuple),
    fix=st.lists(WORDS, max_size=5).map(tuple),
    alternatives=st.lists(
        st.builds(Alternative, cause=WORDS, certainty=st.just("likely"), because=WORDS), max_size=4
    ).map(tuple),
    detected_after_s=SECONDS,
    started_at=SECONDS,
    ended_at=SECONDS,
    notes=st.lists(WORDS, max_size=15).map(tuple),
    references=st.lists(WORDS, max_size=4).map(tuple),
)


@searched(100)
@given(VERDICTS, st.integers(0, 250), WORDS)
def test_any_verdict_is_short_begins_with_the_headline_and_is_harmless(
    verdict: Verdict, width: int, folder: str
) -> None:
    text = render(verdict, color=False, width=width, folder=folder)
    lines = text.split("\n")
    assert len(lines) <= MOST_LINES
    assert lines == text.splitlines()
    assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    if verdict.outcome != "ok":
        beginning = plain(verdict.headline).split(" ")[0][:20]
        assert f": {beginning}" in f"{lines[0]} "
    colored = render(verdict, color=True, width=width, folder=folder)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text
