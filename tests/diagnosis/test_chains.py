"""The line for an exception: where the first of a chain was raised in the user's code, not where a wrapper ended it."""

from __future__ import annotations

import factories as make
import pytest
from ended_ranks import ALL_REDUCE, CLOSED, failed, origin, victim

from rankscope.diagnosis.facts.endings import (
    CameOutAs,
    FailedAsConsequence,
    Raised,
    RaisedWhileHandling,
    RepeatsErrorOf,
)
from rankscope.diagnosis.rules.crashes.endings import explain_endings
from rankscope.evidence.model import EarlierException, Frame, RaisedException, RankEvidence
from rankscope.evidence.tracebacks import find_tracebacks
from rankscope.report.words import headline, sentence

LOAD, MAIN = make.frame("data.py", 22, "load"), make.frame("train.py", 90, "main")
PROGRAM = """\
def main():
    try:
        train()
    except {caught}:
        {handler}
"""


def earlier(kind: str, message: str, *frames: Frame, led: str = "cause") -> EarlierException:
    return EarlierException(kind, message, frames, led)


def ended(number: int, last: RaisedException, *chain: EarlierException) -> RankEvidence:
    whole = RaisedException(last.type, last.message, last.at, last.frames, last.source, last.thread, chain)
    return make.rank(number, exit=make.ended(1), exceptions=whole)


def wrapper(*frames: Frame) -> RaisedException:
    return make.raised("TrainingFailed", "training failed", *(frames or (MAIN,)))


def place(rank: RankEvidence, *others: RankEvidence, **fields: object) -> tuple[str, str, int]:
    """Cause, function and line of the culprit."""
    finding = origin(rank, *others, **fields)
    [culprit] = finding.culprits
    assert culprit.where is not None
    assert culprit.rank == rank.rank
    return finding.cause, culprit.where.function, culprit.where.line


@pytest.mark.parametrize("led", ["cause", "context", "group"])
def test_the_first_of_a_chain_gives_the_line_and_the_wrapper_is_a_fact(led: str) -> None:
    rank = ended(1, wrapper(), earlier("KeyError", "'Returns'", LOAD, MAIN, led=led))

    finding = origin(rank, victim(0))

    assert place(rank, victim(0)) == ("exception", "load", 22)
    assert headline(finding.summary) == "rank 1 raised KeyError in load (data.py:22): 'Returns'"
    told = next(fact for fact in finding.because if isinstance(fact, CameOutAs))
    assert (told.type, told.text, told.led) == ("TrainingFailed", "training failed", led)
    assert "TrainingFailed: training failed" in sentence(told)


def test_the_cause_follows_from_the_first_too() -> None:
    assert place(ended(0, wrapper(), earlier("MemoryError", "", LOAD)))[0] == "out-of-memory-host"
    full = earlier("OSError", "[Errno 28] No space left on device", make.lib("torch/serialization.py", "save"))
    # Inside the library, beneath the exception that has the user's line.
    assert place(ended(0, wrapper(), full)) == ("disk-full", "main", 90)


def test_a_first_exception_without_a_line_of_the_users_leaves_the_line_to_the_next_that_has_one() -> None:
    inner = earlier("KeyError", "'x'", make.lib("pandas/index.py", "get_loc"))
    middle = earlier("ValueError", "no column x", make.lib("pandas/frame.py", "get"), LOAD)
    finding = origin(ended(0, wrapper(), inner, middle))
    assert place(ended(0, wrapper(), inner, middle)) == ("exception", "load", 22)
    assert "ValueError" in headline(finding.summary)


def test_an_optional_import_inside_a_library_is_not_why_it_failed() -> None:
    optional = earlier("ModuleNotFoundError", "No module named 'cupy'", make.lib("fast/ops.py", "use"), led="context")
    assert place(ended(0, make.raised("ValueError", "bad", LOAD), optional))[0] == "exception"


@pytest.mark.parametrize("led", ["cause", "context", "suppressed"])
def test_what_a_rank_raises_over_a_lost_connection_keeps_it_a_victim(led: str) -> None:
    lost = earlier("RuntimeError", CLOSED, ALL_REDUCE, LOAD, led=led)
    endings = explain_endings(make.evidence(ended(0, wrapper(), lost), failed(1, "ValueError", "bad")))
    assert endings.victims == (0,)
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [1]


def test_its_own_error_behind_a_lost_connection_makes_it_the_culprit() -> None:
    own = earlier("ValueError", "bad", LOAD, led="context")
    assert place(ended(1, make.raised("RuntimeError", CLOSED, ALL_REDUCE, MAIN), own), victim(0))[1:] == ("load", 22)


def test_from_none_leaves_the_line_where_the_author_put_it_but_hides_no_exhaustion() -> None:
    hidden = earlier("KeyError", "'adamx'", LOAD, led="suppressed")
    assert place(ended(0, wrapper(), hidden)) == ("exception", "main", 90)
    memory = ended(0, wrapper(), earlier("MemoryError", "", LOAD, led="suppressed"))
    finding = origin(memory)
    assert (finding.cause, finding.certainty) == ("out-of-memory-host", "likely")
    assert place(memory) == ("out-of-memory-host", "main", 90)


@pytest.mark.parametrize(
    ("caught", "handler", "line"),
    [
        ("KeyError", "value = compute()", 40),
        ("(KeyError, queue.Empty)", "value = compute()", 40),
        ("Exception", "clean_up()", 3),
        ("KeyError", "raise ValueError('unknown')", 3),
        ("KeyError as error", "raise ValueError('unknown')", 3),
    ],
)
def test_an_exception_that_the_program_expects_is_not_what_went_wrong(caught: str, handler: str, line: int) -> None:
    """`except KeyError: value = compute()`: what fails in compute() is its own."""
    first = earlier("KeyError", "'x'", make.frame("train.py", 3, "main"), led="context")
    inner = () if handler.startswith("raise") else (make.frame("train.py", 40, "compute"),)
    last = make.raised("ValueError", "bad", *inner, make.frame("train.py", 5, "main"))
    source = {"train.py": PROGRAM.format(caught=caught, handler=handler)}

    assert place(ended(0, last, first), source=source)[2] == line

    told = [
        fact for fact in origin(ended(0, last, first), source=source).because if isinstance(fact, RaisedWhileHandling)
    ]
    assert [fact.handled for fact in told] == (["KeyError"] if line == 40 else [])


def test_an_interrupt_over_an_own_error_does_not_hide_it_and_alone_it_is_a_signal() -> None:
    stopped = make.raised("KeyboardInterrupt", "", ALL_REDUCE, MAIN)
    assert place(ended(0, stopped))[0] == "killed"
    assert place(ended(0, stopped, earlier("ValueError", "bad", LOAD, led="context"))) == ("exception", "load", 22)
    first = earlier("KeyboardInterrupt", "", LOAD, led="context")
    assert place(ended(0, make.raised("AttributeError", "no writer", MAIN), first))[0] == "killed"


@pytest.mark.parametrize(
    "text",
    [
        "/opt/libtorch_cpu.so: failed to map segment from shared object",
        "libgomp.so.1: cannot allocate memory in static TLS block",
        "libcublas.so.12: failed to map segment from shared object: Cannot allocate memory",
        "std::bad_alloc",
    ],
)
def test_an_import_for_which_memory_did_not_suffice_is_no_missing_module(text: str) -> None:
    assert place(failed(0, "ImportError", text, LOAD))[0] == "out-of-memory-host"
    wrapped = earlier("ImportError", text, make.lib("numpy/core/__init__.py", "<module>"), LOAD)
    assert (
        place(ended(0, make.raised("ImportError", "numpy failed to import", MAIN), wrapped))[0] == "out-of-memory-host"
    )


def test_a_library_on_a_file_system_without_execution_is_no_lack_of_memory() -> None:
    text = "/mnt/libx.so: failed to map segment from shared object: Operation not permitted"
    assert place(failed(0, "ImportError", text, LOAD))[0] == "import-failed"


QUOTED = (
    "Traceback (most recent call last):\n"
    f'  File "{make.USER}data.py", line 22, in load\n    return table[name]\n'
    "KeyError: 'Returns'\n"
)


def test_the_error_of_a_spawned_process_is_placed_where_it_was_raised() -> None:
    text = f"\n\n-- Process 1 terminated with the following error:\n{QUOTED}"
    join = make.lib("torch/multiprocessing/spawn.py", "join")
    rank = failed(0, "torch.multiprocessing.spawn.ProcessRaisedException", text, join, MAIN)
    assert place(rank) == ("exception", "load", 22)
    raised = origin(rank).summary
    assert isinstance(raised, Raised)
    assert (raised.type, raised.spawned) == ("KeyError", 1)


def test_ranks_that_raise_a_gathered_traceback_only_repeat_it() -> None:
    repeating = [failed(n, "RuntimeError", f"a peer failed:\n{QUOTED}", MAIN, at=make.NOW - 2) for n in (0, 2)]
    own = failed(1, "KeyError", "'Returns'", LOAD, at=make.NOW - 1)

    endings = explain_endings(make.evidence(repeating[0], own, repeating[1]))

    assert endings.victims == (0, 2)
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [1]
    assert RepeatsErrorOf((0, 2), 1) in endings.origin.because
    assert not any(isinstance(fact, FailedAsConsequence) for fact in endings.origin.because)


def test_a_rank_that_gathers_its_own_error_too_does_not_only_repeat_it() -> None:
    gathered = [failed(n, "RuntimeError", f"some ranks failed:\nrank 1:\n{QUOTED}", MAIN) for n in range(3)]

    endings = explain_endings(make.evidence(*gathered))

    assert endings.victims == (0, 2)
    assert endings.origin is not None
    [culprit] = endings.origin.culprits
    assert culprit.where is not None
    assert (culprit.rank, culprit.where.line) == (1, 22)


def test_the_rank_that_a_gathered_traceback_names_is_blamed_though_it_raised_nothing_itself() -> None:
    repeating = [failed(n, "RuntimeError", f"errors of rank 1:\n{QUOTED}", MAIN) for n in (0, 2)]

    endings = explain_endings(make.evidence(repeating[0], make.rank(1, exit=make.ended(0)), repeating[1]))

    assert endings.victims == (0, 2)
    assert endings.origin is not None
    [culprit] = endings.origin.culprits
    assert culprit.where is not None
    assert (culprit.rank, culprit.where.line, endings.origin.certainty) == (1, 22, "likely")


def test_a_chain_that_only_the_output_shows_is_followed_too() -> None:
    """As in evidence that was taken before exceptions were stored with what led to them."""
    tail = (
        *QUOTED.splitlines(), "", "The above exception was the direct cause of the following exception:", "",
        "Traceback (most recent call last):", f'  File "{make.USER}train.py", line 90, in main',
        "TrainingFailed: training failed",
    )  # fmt: skip
    hooked = make.rank(0, exit=make.ended(1), exceptions=wrapper(), error_tail=tail)
    assert place(hooked) == ("exception", "load", 22)
    printed = make.rank(0, exit=make.ended(1), exceptions=find_tracebacks(tail), error_tail=tail)
    assert place(printed) == ("exception", "load", 22)
