"""`rankscope diagnose` as people use it: files of all kinds, together, from a pipe, as JSON."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evidence"))

import flight_dumps as make

from rankscope.cli import main
from rankscope.evidence.readers.gather import gather
from rankscope.report.conclude import conclude


def verdict_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["diagnose", "--json", *arguments])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == {"ok": 0, "unknown": 3}.get(verdict["outcome"], 1)
    return verdict


def culprits(verdict: dict[str, Any]) -> list[int | None]:
    return [culprit["rank"] for culprit in verdict["culprits"]]


def timeout(rank: int, seq: int = 418, op: str = "ALLREDUCE", numel: int = 64) -> str:
    return (
        f"[rank{rank}]:[E1115 02:10:03.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran\n"
    )


def step(rank: int, at: str = "02:00:01") -> str:
    return f"[rank{rank}]: 2026-11-15 {at} step 410\n"


TRACEBACK = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/home/me/train.py", line 61, in main\n[rank2]:     loss.backward()\n'
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
)


def test_the_rank_without_a_time_out_of_its_own_is_whom_the_others_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(map(step, range(4))) + timeout(0) + timeout(1) + timeout(3))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["outcome"], verdict["certainty"], culprits(verdict)) == ("hang", "likely", [2])
    assert verdict["victims"] == [0, 1, 3]
    assert verdict["next"]
    assert all(other["next"] for other in verdict["alternatives"])
    sign = verdict["signs_of_life"][0]
    assert (sign["rank"], round(sign["silent_s"])) == (2, 602)
    assert {message["role"] for message in verdict["messages"]} == {"victim"}


def test_an_exception_in_a_log_outweighs_the_time_outs_that_follow_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(map(step, range(3))) + TRACEBACK + timeout(0) + timeout(1))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["cause"], culprits(verdict), verdict["victims"]) == ("out-of-memory-gpu", [2], [0, 1])
    assert verdict["culprits"][0]["where"]["line"] == 61
    assert verdict["certainty"] == "likely"


def test_ranks_that_wait_in_different_operations_at_one_place_do_not_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(timeout(0, op="BROADCAST") + timeout(1) + timeout(2))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["cause"], culprits(verdict)) == ("collective-mismatch", [0])


def test_fingerprints_of_torchs_debug_mode_name_the_odd_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(rank: int, other: str, op: str) -> str:
        def text(op: str) -> str:
            return f"CollectiveFingerPrint(SequenceNumber=6, OpType={op}, TensorShape=[4], TensorDtypes=Float)"

        return (
            f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running "
            f"collective: {text(op)}, but Rank {other} is running collective: {text('BARRIER')}.\n"
        )

    log = tmp_path / "train.log"
    log.write_text(words(0, "2", "ALLREDUCE") + words(1, "2", "ALLREDUCE"))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["cause"], verdict["certainty"], culprits(verdict)) == ("collective-mismatch", "proven", [2])


def test_a_rank_missing_from_the_store_barrier_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "[rank{0}]: Waiting in store based barrier to initialize process group for rank: {0}, key: k "
        "(world_size=4, worker_count=3)\n"
    )
    log = tmp_path / "train.log"
    log.write_text("".join(text.format(rank) for rank in (0, 1, 3)))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["cause"], culprits(verdict)) == ("rank-missing", [2])


def test_words_of_victims_alone_blame_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:3\n")
    verdict = verdict_of(capsys, str(log))
    assert (verdict["certainty"], verdict["culprits"]) == ("possible", [])


def steps_until(end: float) -> str:
    """Thirty steps of four ranks, one a second, the last at `end`."""
    times = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end - 29 + second)) for second in range(30)]
    return "".join(f"[rank{rank}]: {at} step {400 + n}\n" for n, at in enumerate(times) for rank in range(4))


def test_a_log_in_which_all_ranks_count_steps_up_to_now_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(steps_until(time.time()))
    verdict = verdict_of(capsys, str(log))
    assert (verdict["outcome"], verdict["certainty"]) == ("ok", "possible")
    assert "429" in verdict["headline"]


def test_steps_that_ended_an_hour_ago_do_not_tell_how_the_job_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(steps_until(time.time() - 3000))
    os.utime(log, (time.time() - 3000,) * 2)
    verdict = verdict_of(capsys, str(log))
    assert (verdict["outcome"], verdict["cause"], verdict["culprits"]) == ("unknown", None, [])
    assert "steps up to 429" in str(verdict["because"])
    assert verdict["alternatives"]
    log.write_text(log.read_text() + "".join(f"[rank{rank}]: Training finished\n" for rank in range(4)))
    assert verdict_of(capsys, str(log))["outcome"] == "ok"


def test_lines_that_keep_coming_without_counting_anything_are_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(re.sub(r"step \d+", "waiting for the lock", steps_until(time.time())))
    assert verdict_of(capsys, str(log))["outcome"] == "unknown"


def test_standard_input_is_read_in_place_of_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(map(step, range(3))) + TRACEBACK + timeout(0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert culprits(verdict_of(capsys, "-")) == [2]


def test_dumps_and_a_log_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = (make.call(1), make.call(2, done=False))
    for rank in (0, 1, 3):
        make.write(tmp_path, rank, *waiting)
    (tmp_path / "all.log").write_text("".join(map(step, range(4))) + TRACEBACK)
    verdict = verdict_of(capsys, str(tmp_path))
    assert (verdict["cause"], culprits(verdict), verdict["victims"]) == ("out-of-memory-gpu", [2], [0, 1, 3])


def test_the_only_rank_without_a_dump_is_likely_the_absent_one(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        make.write(tmp_path, rank, make.call(1), make.call(2, done=False))
    verdict = conclude(gather([str(tmp_path)]))
    assert (verdict.certainty, [culprit.rank for culprit in verdict.culprits]) == ("likely", [2])


def test_where_most_dumps_are_missing_nobody_is_blamed(tmp_path: Path) -> None:
    make.write(tmp_path, 0, make.call(1), make.call(2, done=False))
    verdict = conclude(gather([str(tmp_path)]))
    assert (verdict.outcome, verdict.certainty, verdict.culprits) == ("hang", "possible", ())


def test_one_against_one_blames_nobody_without_the_source(tmp_path: Path) -> None:
    make.write(tmp_path, 0, make.call(1), make.call(2, done=False), ranks=2)
    make.write(tmp_path, 1, make.call(1), ranks=2)
    verdict = conclude(gather([str(tmp_path)]))
    assert (verdict.outcome, verdict.certainty, verdict.culprits) == ("hang", "possible", ())


def test_the_source_tells_that_the_waiting_rank_made_a_call_too_many(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def step(rank):\n    all_reduce()\n    if rank == 0:\n        barrier()\n    return\nstep(0)\n")
    first = {**make.call(1), "frames": make.frames("step", 2, str(script), 6)}
    extra = {**make.call(2, op="barrier", done=False), "frames": make.frames("step", 4, str(script), 6)}
    folder = tmp_path / "dumps"
    folder.mkdir()
    make.write(folder, 0, first, extra, ranks=2)
    make.write(folder, 1, first, ranks=2)
    verdict = conclude(gather([str(folder)]))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("collective-skipped", [0])
    assert "if rank == 0" in str(verdict.because)


def test_operations_that_never_match_are_proven_by_dumps(tmp_path: Path) -> None:
    for rank in range(3):
        odd = rank == 1
        last = make.call(2, op="broadcast" if odd else "all_reduce", line=30 if odd else 20, done=False)
        make.write(tmp_path, rank, make.call(1), last, ranks=3)
    verdict = conclude(gather([str(tmp_path)]))
    assert (verdict.certainty, [culprit.rank for culprit in verdict.culprits]) == ("proven", [1])


def test_dumps_in_json_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        calls = [make.call(1), *([make.call(2, done=False)] if rank else [])]
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(make.dump(*calls, ranks=3, shift_ns=rank)))
    assert culprits(verdict_of(capsys, str(tmp_path))) == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nowhere"], "does not exist"), (["-", "-"], "only once"), ([], "required")],
)
def test_mistakes_in_the_command_are_one_line_and_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_refused_file_is_named_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1, 2):
        make.write(tmp_path, rank, make.call(1), *([make.call(2, done=False)] if rank else []), ranks=3)
    (tmp_path / "rank_9").write_bytes(pickle.dumps({"entries": 3}))
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "rank_9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "inside"), [("rank != 1", (0, 2)), ("rank in (0, 2)", (0, 2)), ("rank == 1", (1,))]
)
def test_a_condition_on_the_rank_blames_the_fewer_ranks_on_either_side_of_it(
    condition: str, inside: tuple[int, ...], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"def step(rank):\n    all_reduce()\n    if {condition}:\n        all_reduce()\n    barrier()\nstep(0)\n"
    )
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(3):
        op, line = ("all_reduce", 4) if rank in inside else ("barrier", 5)
        calls = [make.call(1), make.call(2, op=op, done=False)]
        for entry, at in zip(calls, (2, line), strict=True):
            entry["frames"] = make.frames("step", at, str(script), 6)
        make.write(folder, rank, *calls, ranks=3)
    verdict = conclude(gather([str(folder)]))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("collective-skipped", [1])
    assert verdict.victims == (0, 2)
    assert condition in str(verdict.because)


def test_one_look_at_stacks_proves_no_health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, call in enumerate(("all_reduce", "barrier")):
        (tmp_path / f"rank{rank}.txt").write_text(
            f"Process {100 + rank}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            f'Thread {100 + rank} (idle): "MainThread"\n'
            f"    {call} (torch/distributed/distributed_c10d.py:3245)\n    step (/home/me/train.py:{10 + rank})\n"
        )
    verdict = verdict_of(capsys, str(tmp_path))
    assert (verdict["outcome"], verdict["certainty"], verdict["culprits"]) == ("unknown", "possible", [])
    assert "twice" in str(verdict["next"])


LOOP = """\
def main(rank):
    for step in range(9):
        all_reduce()
        if step == 4 and rank == 0:
            all_reduce()
    all_reduce_at_the_end()
main(0)
"""


def test_ranks_that_are_out_of_the_loop_because_another_made_an_extra_call_in_it_are_not_short_of_data(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(3):
        lines = [3] * 5 + ([5] if rank == 0 else []) + [3] * 4
        calls = [make.call(seq) for seq in range(1, 10)]
        last = make.call(10, done=False) if rank == 0 else make.call(10, op="barrier", done=False)
        for entry, line in zip([*calls, last], [*lines, 6][:10], strict=True):
            entry["frames"] = make.frames("main", line, str(script), 7)
        make.write(folder, rank, *calls, last, ranks=3)
    verdict = conclude(gather([str(folder)]))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("collective-skipped", [0])
    where = verdict.culprits[0].where
    assert where is not None
    assert where.line == 5
