"""The zoo: every case gets the verdict written beside it, and the zoo itself is in order."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import never_look_again

ZOO = Path(__file__).resolve().parent.parent / "zoo"
sys.path.insert(0, str(ZOO))

from execution import run_case  # noqa: E402
from expectation import Case, Expectation, Kill, accepted_lines, case_names, load_case  # noqa: E402
from judge import GotCulprit, GotVerdict, GotWhere, Observation, judge  # noqa: E402
from run import explain, run_and_judge  # noqa: E402
from several import Runs, run_several  # noqa: E402

TELLING = re.compile(
    r"(?<![a-z])(hangs?|hung|deadlocks?|bugs?|faults?|faulty|stuck|culprits?|broken|victims?)(?![a-z])",
    re.IGNORECASE,
)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All selected cases, several at a time."""
    folder = tmp_path_factory.mktemp("zoo")
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = {item.callspec.params["name"] for item in items if "runs" in item.fixturenames}
    with run_several([name for name in case_names() if name in wanted], folder) as results:
        yield results


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_case_gets_its_verdict:
        whole = metafunc.config.getoption("--whole-zoo")
        metafunc.parametrize("name", case_names() if whole else live_selection())


def live_selection() -> list[str]:
    """What is run each time: every healthy case, and one of each cause and outcome. The corpus holds all of them."""
    chosen: dict[object, str] = {}
    for name in case_names():
        expect = load_case(name).expect
        chosen.setdefault(name if expect.healthy else (expect.cause, expect.outcome), name)
    return sorted(chosen.values())


@pytest.mark.slow
@pytest.mark.alone  # several cases run at a time already, and each is timed
@pytest.mark.timeout(1800)
def test_case_gets_its_verdict(name: str, runs: Runs, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A busy machine may spoil the timing of a case once; a wrong blame or a false alarm is never forgiven."""
    first = runs[name].result()
    if first.judgement.wrong_blame or first.judgement.false_alarm:
        never_look_again(request)
    assert not first.judgement.wrong_blame, explain(first)
    assert not first.judgement.false_alarm, explain(first)
    if not first.judgement.right:
        again = run_and_judge(name, tmp_path / "again")
        if again.judgement.wrong_blame or again.judgement.false_alarm:
            never_look_again(request)
        assert again.judgement.right, f"{explain(first)}\nand again:\n{explain(again)}"


@pytest.mark.parametrize("name", case_names())
def test_expectation_is_sound(name: str) -> None:
    case = load_case(name)
    expect = case.expect
    assert expect.stopped == (expect.exit_code in (75, 76))
    assert expect.healthy == (expect.cause is None)
    assert expect.ranks <= set(range(expect.nproc))
    assert not expect.healthy or (expect.exit_code == 0 and not expect.ranks)
    assert {snippet: len(found) for snippet, found in accepted_lines(case).items() if len(found) != 1} == {}
    if expect.kill is not None:
        assert expect.kill.rank < expect.nproc
        assert expect.kill.signal in signal.Signals.__members__


@pytest.mark.parametrize("name", case_names())
def test_program_does_not_name_what_is_wrong_with_it(name: str) -> None:
    folder = load_case(name).folder
    assert not TELLING.search(name)
    for path in folder.rglob("*.py"):
        assert not TELLING.search(path.name)
        telling = [line for line in path.read_text().splitlines() if TELLING.search(line.replace("_", " "))]
        assert telling == []


def test_zoo_is_large_enough() -> None:
    cases = [load_case(name) for name in case_names()]
    assert len(cases) >= 16
    assert sum(case.expect.healthy for case in cases) >= 3


def make_case(folder: Path, **changes: object) -> Case:
    fields: dict[str, object] = {
        "description": "d",
        "source": "s",
        "nproc": 3,
        "fault_marker": "saving",
        "outcome": "hang",
        "cause": "collective-skipped",
        "rank": 1,
        "line": "two()",
        "exit_code": 75,
        "stopped": True,
    }
    (folder / "train.py").write_text("one()\ntwo()\nthree()\n")
    return Case("made", folder, Expectation(**{**fields, **changes}))  # type: ignore[arg-type]


def make_verdict(*ranks: int | None, line: int = 2, file: str = "train.py", outcome: str = "hang") -> GotVerdict:
    culprits = [GotCulprit(rank, "rank", GotWhere(file, line)) for rank in ranks]
    return GotVerdict(outcome, "collective-skipped" if outcome != "ok" else None, "proven", culprits)


def seen_hang(verdict: GotVerdict) -> Observation:
    return Observation(75, verdict, announcements=("rankscope: HANG",), fault_at=10.0, announced_at=11.5)


def test_expected_verdict_is_right_and_timed(tmp_path: Path) -> None:
    judgement = judge(make_case(tmp_path), seen_hang(make_verdict(1)))
    assert judgement.right
    assert judgement.seconds == 1.5


def test_absolute_path_of_the_same_file_is_accepted(tmp_path: Path) -> None:
    verdict = make_verdict(1, file=str(tmp_path / "train.py"))
    assert judge(make_case(tmp_path), seen_hang(verdict)).right


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (make_verdict(1, line=3), "line"),
        (make_verdict(1, file="other.py"), "line"),
        (GotVerdict("hang", "blocked-call", "proven", make_verdict(1).culprits), "cause"),
        (GotVerdict("crash", "collective-skipped", "proven", make_verdict(1).culprits), "outcome"),
    ],
)
def test_other_verdict_for_the_right_rank_is_wrong_but_no_wrong_blame(
    tmp_path: Path, verdict: GotVerdict, word: str
) -> None:
    judgement = judge(make_case(tmp_path), seen_hang(verdict))
    assert not judgement.right
    assert not judgement.wrong_blame
    assert [problem.split(":")[0] for problem in judgement.problems] == [word]


def test_an_innocent_rank_among_the_culprits_is_a_wrong_blame(tmp_path: Path) -> None:
    assert judge(make_case(tmp_path), seen_hang(make_verdict(1, 2))).wrong_blame
    assert not judge(make_case(tmp_path, rank=[1, 2]), seen_hang(make_verdict(1, 2))).wrong_blame
    missing_one = judge(make_case(tmp_path, rank=[1, 2]), seen_hang(make_verdict(2)))
    assert not missing_one.wrong_blame
    assert not missing_one.right


def test_culprit_without_a_rank_matches_an_absent_rank(tmp_path: Path) -> None:
    case = make_case(tmp_path, rank=None, line="")
    assert judge(case, seen_hang(make_verdict(None))).right
    assert judge(case, seen_hang(make_verdict(0))).wrong_blame


def test_report_on_a_healthy_run_is_a_false_alarm(tmp_path: Path) -> None:
    case = make_case(tmp_path, outcome="ok", cause=None, rank=None, line="", exit_code=0, stopped=False)
    quiet = Observation(0, make_verdict(outcome="ok"))
    assert judge(case, quiet).right
    reported = judge(case, Observation(0, make_verdict(outcome="ok"), announcements=("rankscope: SLOW",)))
    assert reported.false_alarm
    assert not reported.right
    stopped = judge(case, seen_hang(make_verdict(1)))
    assert stopped.false_alarm
    assert stopped.wrong_blame


def test_leftover_process_and_missing_verdict_are_never_right(tmp_path: Path) -> None:
    case = make_case(tmp_path)
    left = judge(case, Observation(75, make_verdict(1), fault_at=1.0, announced_at=2.0, leftovers=("1 python",)))
    assert left.problems == ("still running afterwards: 1 python",)
    assert not judge(case, Observation(75, None, verdict_missing="no file", fault_at=1.0)).right


FAKE_TOOL = """
import json, os, pathlib, signal, subprocess, sys
run_dir = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run_dir.mkdir(parents=True)
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(run_dir / "ranks.json").write_text(json.dumps({"1": rank.pid}))
print("R0: saving", flush=True)
if "--leave" not in sys.argv:
    assert rank.wait() == -signal.SIGKILL
where = {"file": os.path.abspath("train.py"), "line": 2, "function": "main"}
verdict = {"schema": 1, "outcome": "hang", "cause": "collective-skipped", "certainty": "proven",
           "culprits": [{"rank": 1, "process": "rank", "where": where, "doing": ""}], "headline": ""}
(run_dir / "verdict.json").write_text(json.dumps(verdict))
print("rankscope: HANG, proven", file=sys.stderr, flush=True)
sys.exit(75)
"""


def test_runner_sends_the_signal_and_reads_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE_TOOL)
    case = make_case(tmp_path, kill=Kill(rank=1, signal="SIGKILL", after="saving"))
    seen = run_case(case, tmp_path / "zoo", (sys.executable, str(tmp_path / "fake.py")))
    judgement = judge(case, seen)
    assert judgement.problems == ()
    assert judgement.seconds is not None
    assert judgement.seconds >= 0


def test_runner_finds_and_ends_what_a_run_left_behind(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE_TOOL)
    case = make_case(tmp_path, args=["--leave"])
    seen = run_case(case, tmp_path / "zoo", (sys.executable, str(tmp_path / "fake.py")))
    assert len(seen.leftovers) == 1
    pid = int(seen.leftovers[0].split()[0])
    deadline = time.monotonic() + 10  # it has been killed; on a busy machine the kernel takes a moment
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """A zombie does not count: it has ended, only nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
