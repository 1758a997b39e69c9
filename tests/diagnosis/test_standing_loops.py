"""Loops of the user's code: those that only test and sleep, those that never end, and those that work."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from in_words import Told, in_words
from msgspec.structs import replace

from rankscope.diagnosis.rules.standing.loops import loop_at
from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.evidence.model import RankEvidence, StackSample, Syscall

SLEEP = make.process("clock_nanosleep", sleeps=3, main_cpu=0.0002)


def explain(rank: RankEvidence, text: str, **fields: Any) -> Told:
    return in_words(explain_standing(rank, make.evidence(rank, source={"train.py": text}, **fields), waiters=(0, 1)))


def stands_at(line: int, function: str = "wait", **fields: Any) -> RankEvidence:
    main = make.thread((make.frame("train.py", line, function),))
    return make.rank(2, main, **{"still_for_s": 40.0, "processes": SLEEP, **fields})


def stand_of(text: str, **fields: Any) -> Told:
    """The rank stands in the line of `text` that is marked with `# here`."""
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "# here" in row)
    return explain(stands_at(line, **fields), text)


VANISHES = [
    """
def wait(lock):
    while os.path.exists(lock):
        time.sleep(1)  # here
""",
    """
def wait(lock: Path):
    started = time.monotonic()
    while lock.exists() and time.monotonic() - started < 10_000:
        print("still locked")
        sleep(0.2)  # here
""",
    """
while True:
    if not os.path.isfile(f"{folder}/lock"):
        break
    logger.info("somebody else is at it")
    time.sleep(0.5)  # here
""",
    """
def take(lock):
    while True:
        try:
            handle = os.open(lock, os.O_CREAT | os.O_EXCL)
            return handle
        except FileExistsError:
            time.sleep(0.1)  # here
""",
]
APPEARS = [
    """
def wait(done):
    while not done.is_file():
        time.sleep(1)  # here
""",
    """
def wait(done):
    for attempt in range(10_000):
        if os.path.exists(done):
            return True
        time.sleep(1)  # here
    raise TimeoutError
""",
    """
def wait(parts):
    while not all(p.exists() for p in parts):
        time.sleep(1)  # here
""",
]
FLAGS = [
    """
def wait(flag):
    while not flag:
        time.sleep(0.1)  # here
""",
    """
def wait(server):
    while True:
        state = server.state()
        if state == "ready":
            break
        time.sleep(0.1)  # here
""",
]
WORKS = [
    """
def run(items):
    for item in items:
        handle(item)
        time.sleep(0.5)  # here
""",
    """
def run(queue):
    while queue:
        upload(queue.pop())
        time.sleep(0.5)  # here
""",
    """
def run():
    time.sleep(3600)  # here
""",
]


@pytest.mark.parametrize("text", VANISHES)
def test_a_loop_that_waits_for_a_file_to_vanish_waits_for_a_lock(text: str) -> None:
    finding = stand_of(text)
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "lock-wait", "likely")
    assert "until the file is gone" in finding.culprits[0].doing


@pytest.mark.parametrize("text", APPEARS)
def test_a_loop_that_waits_for_a_file_to_appear_is_a_blocked_call(text: str) -> None:
    finding = stand_of(text)
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "blocked-call", "likely")
    assert "until the file is there" in finding.culprits[0].doing


@pytest.mark.parametrize("text", FLAGS)
def test_a_loop_that_tests_something_else_quotes_its_test(text: str) -> None:
    finding = stand_of(text)
    assert (finding.cause, finding.certainty) == ("blocked-call", "likely")
    assert "testing `" in finding.culprits[0].doing


@pytest.mark.parametrize("text", WORKS)
def test_a_loop_that_does_more_is_not_called_polling(text: str) -> None:
    assert "testing" not in stand_of(text).culprits[0].doing


@pytest.mark.parametrize("text", [VANISHES[0], FLAGS[0]])
def test_a_polling_loop_is_still_though_samples_find_it_on_another_line(text: str) -> None:
    loop, sleep = make.samples(make.thread((make.frame("train.py", 3, "wait"),)), times=1), 4
    rank = stands_at(sleep)
    moved = replace(rank, stacks=(*loop, rank.stacks[-1]))
    assert explain(moved, text).outcome == "hang"
    helper = make.samples(
        make.thread((make.frame("other.py", 3, "is_there"), make.frame("train.py", 3, "wait"))), times=1
    )
    assert explain(replace(rank, stacks=(*helper, rank.stacks[-1])), text).outcome == "hang"
    outside = make.samples(make.thread((make.frame("train.py", 90, "other"),)), times=1)
    assert explain(replace(rank, stacks=(*outside, rank.stacks[-1])), text).outcome == "slow"


def test_a_test_that_does_not_return_is_what_it_calls() -> None:
    tcp = Syscall("recvfrom", 5, "tcp 127.0.0.1:5000 -> 127.0.0.1:9000")
    finding = stand_of(FLAGS[1], processes=make.process(tcp))
    assert "127.0.0.1:9000" in finding.culprits[0].doing


def test_the_loop_of_an_enclosing_function_is_another_ones() -> None:
    text = "while lock.exists():\n    def inner():\n        time.sleep(1)\n    inner()\n"
    seen = make.evidence(source={"train.py": text})
    assert loop_at(make.frame("train.py", 3, "inner"), seen) is None
    assert loop_at(make.frame("train.py", 4, "<module>"), seen) is not None
    assert loop_at(make.frame("train.py", 4, "<module>"), make.evidence(source={"train.py": "while ("})) is None


def test_a_string_of_which_python_warns_does_not_hide_the_loop() -> None:
    seen = make.evidence(source={"train.py": 'DIGITS = "\\d+"\nwhile lock.exists():\n    time.sleep(1)\n'})
    assert loop_at(make.frame("train.py", 3, "<module>"), seen) is not None


ENDLESS = {
    "constant": "def fit(x, left):\n    while left > 0:\n        x = x * 2 + 1\n    return x\n",
    "calls": "def fit(x, left):\n    while left > 0:\n        x = turn(x)\n    return x\n",
    "spins": "def fit(flag):\n    while not flag.done():\n        pass\n",
    "true": "def fit(x):\n    while True:\n        x = x + 1\n",
}
MAY_END = {
    "counts": "def fit(x, left):\n    while left > 0:\n        left -= 1\n    return x\n",
    "breaks": "def fit(x, left):\n    while left > 0:\n        if x: break\n    return x\n",
    "hands over": "def fit(x, left):\n    while left:\n        take(left)\n    return x\n",
    "method": "def fit(x, left):\n    while left:\n        left.pop()\n    return x\n",
    "shared": "def fit(x):\n    while RUNNING:\n        x = turn(x)\n    return x\n",
    "attribute": "def fit(self):\n    while self.left:\n        turn(self.x)\n",
    "server": "def fit(x):\n    while True:\n        x = turn(x)\n",
    "over": "def fit(x):\n    for _ in x:\n        x = turn(x)\n",
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=list(ENDLESS))
def test_a_busy_loop_that_nothing_can_end_is_endless(text: str) -> None:
    busy = stands_at(3, "fit", still_for_s=0.1, processes=make.process(cpu=0.5), progress=make.progress(steps=5))
    finding = explain(busy, text)
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "endless-loop", "likely")
    assert "busy in fit (train.py:3), in the loop at line 2, and has completed nothing for 12 s" in finding.summary
    noted = make.progress(steps=5, changed_at=make.NOW - 11)
    early = explain(stands_at(3, "fit", still_for_s=0.1, processes=make.process(cpu=0.5), progress=noted), text)
    assert (early.outcome, early.cause) == ("slow", "endless-loop")
    assert [other.cause for other in finding.alternatives] == ["slow-rank"]


@pytest.mark.parametrize("text", MAY_END.values(), ids=list(MAY_END))
def test_a_busy_loop_that_may_end_is_work(text: str) -> None:
    busy = stands_at(3, "fit", still_for_s=0.1, processes=make.process(cpu=0.5), progress=make.progress(steps=5))
    assert explain(busy, text).cause == "slow-rank"


def test_before_the_threshold_no_loop_is_called_endless() -> None:
    noted = make.progress(steps=5, changed_at=make.NOW - 2)
    busy = stands_at(3, "fit", still_for_s=0.1, processes=make.process(cpu=0.5), progress=noted)
    assert explain(busy, ENDLESS["constant"]).cause == "slow-rank"


EVERY_TURN = """
def sample(mask):
    while True:
        at = draw(mask)
        if mask[at]:
            return at

def train(steps):
    for step in range(steps):
        at = sample(masks[step])
        dist.all_reduce(loss)
"""
NOW_AND_THEN = """
def sample(mask):
    while True:
        at = draw(mask)
        if mask[at]:
            return at

def train(steps):
    for step in range(steps):
        if step % 100 == 0:
            at = sample(masks[step])
        dist.all_reduce(loss)
"""


def turning(text: str, *, quiet_s: float, turns: int = 8, turn_s: float = 0.2) -> RankEvidence:
    """Steps of `turn_s`, and then nothing for `quiet_s`, busy in `sample`; seen in this look and in an earlier one."""
    rows = text.splitlines()
    reduce = rows.index("        dist.all_reduce(loss)") + 1
    called = next(number for number, row in enumerate(rows, 1) if "= sample(" in row)
    last = make.NOW - quiet_s
    calls = tuple(
        replace(
            make.call(n, "all_reduce", make.frame("train.py", reduce, "train"), seq=n + 1, step=n),
            entered_at=last - (turns - n) * turn_s,
            left_at=last - (turns - n) * turn_s,
        )
        for n in range(turns)
    )

    def sample(line: int, at: float) -> StackSample:
        frames = (make.frame("train.py", line, "sample"), make.frame("train.py", called, "train"))
        return replace(make.samples(make.thread(frames), times=1)[0], at=at)

    return make.rank(
        2,
        still_for_s=0.2,
        stacks=(sample(4, make.NOW - 0.5), sample(5, make.NOW)),
        earlier_stacks=(sample(4, make.NOW - 8), sample(3, make.NOW - 7)),
        processes=make.process(cpu=0.5),
        progress=make.progress(*calls, steps=turns, changed_at=last),
    )


def test_a_loop_of_every_turn_far_beyond_the_ranks_own_rhythm_is_endless() -> None:
    early = explain(turning(EVERY_TURN, quiet_s=11), EVERY_TURN)
    assert (early.outcome, early.cause, early.certainty) == ("slow", "endless-loop", "likely")
    finding = explain(turning(EVERY_TURN, quiet_s=40), EVERY_TURN)
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "endless-loop", "likely")
    assert "the longest turn so far took 0.2 s" in finding.because[0]
    assert "4 samples" in finding.because[0]


@pytest.mark.parametrize(
    ("text", "quiet_s", "turn_s", "alternatives"),
    [
        (NOW_AND_THEN, 40.0, 0.2, ["endless-loop"]),  # an evaluation of a minute, now and then, looks like this
        (EVERY_TURN, 40.0, 10.0, []),  # its turns are long anyway
        (EVERY_TURN, 5.0, 0.2, []),  # too early
    ],
)
def test_what_cannot_be_told_from_long_work_stays_slow(
    text: str, quiet_s: float, turn_s: float, alternatives: list[str]
) -> None:
    finding = explain(turning(text, quiet_s=quiet_s, turn_s=turn_s), text)
    assert (finding.outcome, finding.cause) == ("slow", "slow-rank")
    assert [other.cause for other in finding.alternatives] == alternatives


def test_a_rank_that_has_no_rhythm_yet_is_at_work() -> None:
    finding = explain(turning(EVERY_TURN, quiet_s=40, turns=2), EVERY_TURN)
    assert (finding.cause, finding.alternatives) == ("slow-rank", ())


def test_samples_in_different_loops_are_work() -> None:
    rank = turning(EVERY_TURN, quiet_s=40)
    elsewhere = replace(rank.stacks[0], threads=(make.thread((make.frame("train.py", 10, "train"),)),))
    assert explain(replace(rank, stacks=(elsewhere, rank.stacks[1])), EVERY_TURN).cause == "slow-rank"
