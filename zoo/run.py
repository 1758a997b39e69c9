"""Runs the zoo: each case under `rankscope run`, its verdict compared with the expected one.

python zoo/run.py                      all cases
python zoo/run.py NAME... --repeat 5   some, several times
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from execution import RANKSCOPE, run_case
from expectation import CASES, NCCL_CASES, STRANGERS, Case, case_names, load_case
from judge import Judgement, Observation, blamed_ranks, judge, place_text, ranks_text

ROW = "{:<20} {:<12} {:<20} {:<6} {:<22} {:>8}  {}"


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    seen: Observation
    judgement: Judgement
    folder: Path


def run_and_judge(
    name: str,
    folder: Path,
    root: Path = CASES,
    *,
    command: Sequence[str] = RANKSCOPE,
    ranks: int | None = None,
    patience: float = 1.0,
    on_fault: Callable[[], None] = lambda: None,
) -> Result:
    """Runs one case once, with its files under `folder` (made here); the rest is as in `run_case`."""
    case = load_case(name, root, ranks=ranks)
    seen = run_case(case, folder, command, patience=patience, on_fault=on_fault)
    return Result(case, seen, judge(case, seen), folder)


def explain(result: Result) -> str:
    """What was expected and what came, one fact a line."""
    lines = [f"{result.case.name}: {result.case.expect.description}"]
    lines += [f"  {problem}" for problem in result.judgement.problems]
    verdict = result.seen.verdict
    if verdict is not None and verdict.headline:
        lines.append(f"  rankscope said: {verdict.headline}")
    return "\n".join(lines)


def row(result: Result) -> str:
    verdict, judgement = result.seen.verdict, result.judgement
    seconds = "-" if judgement.seconds is None else f"{judgement.seconds:.1f}"
    right = "yes" if judgement.right else "NO"
    if verdict is None:
        return ROW.format(result.case.name, "no verdict", "-", "-", "-", seconds, right)
    places = sorted({place_text(culprit.where) for culprit in verdict.culprits}) or ["-"]
    return ROW.format(
        result.case.name,
        verdict.outcome,
        verdict.cause or "-",
        ranks_text(blamed_ranks(verdict)),
        " ".join(places),
        seconds,
        right,
    )


def timing_line(results: Sequence[Result]) -> str:
    """Seconds from fault to verdict, over the runs whose verdict was called proven."""
    seconds = [
        result.judgement.seconds
        for result in results
        if result.judgement.seconds is not None
        and result.seen.verdict is not None
        and result.seen.verdict.certainty == "proven"
        and not result.case.expect.healthy
    ]
    if not seconds:
        return "fault to verdict, proven cases: none measured"
    return (
        f"fault to verdict, {len(seconds)} proven cases: "
        f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s"
    )


def total_line(results: Sequence[Result]) -> str:
    right = sum(result.judgement.right for result in results)
    blames = sum(result.judgement.wrong_blame for result in results)
    alarms = sum(result.judgement.false_alarm for result in results)
    return f"{right}/{len(results)} right, {blames} wrong blame, {alarms} false alarms"


def as_json(result: Result) -> dict[str, Any]:
    verdict = result.seen.verdict
    return {
        "case": result.case.name,
        "right": result.judgement.right,
        "wrong_blame": result.judgement.wrong_blame,
        "false_alarm": result.judgement.false_alarm,
        "problems": list(result.judgement.problems),
        "seconds": result.judgement.seconds,
        "exit_code": result.seen.exit_code,
        "outcome": verdict.outcome if verdict else None,
        "cause": verdict.cause if verdict else None,
        "certainty": verdict.certainty if verdict else None,
        "ranks": sorted(blamed_ranks(verdict)) if verdict else [],
        "where": [place_text(culprit.where) for culprit in verdict.culprits] if verdict else [],
        "headline": verdict.headline if verdict else None,
    }


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the zoo and compare verdicts.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to run; all when none is given")
    parser.add_argument("--repeat", type=int, default=1, help="run every case that many times")
    parser.add_argument("--jobs", type=int, default=1, help="cases to run at a time; more disturb the timings")
    parser.add_argument("--ranks", type=int, metavar="N", help="run on so many ranks, whatever the case asks for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--keep", action="store_true", help="keep the runs' folders even when all is right")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    parser.add_argument(
        "--nccl",
        dest="root",
        action="store_const",
        const=NCCL_CASES,
        default=CASES,
        help="the cases for NCCL instead; they need a GPU",
    )
    parser.add_argument(
        "--strangers",
        dest="root",
        action="store_const",
        const=STRANGERS,
        help="programs written without a look at the rules instead",
    )
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.names) - set(case_names(arguments.root)))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; --list shows them all")
    return arguments


def list_cases(names: Sequence[str], root: Path) -> None:
    for name in names:
        expect = load_case(name, root).expect
        print(f"{name:<20} {expect.outcome:<6} {expect.cause or '-':<20} {expect.description}")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    names = arguments.names or case_names(arguments.root)
    if arguments.list:
        list_cases(names, arguments.root)
        return 0
    base = Path(tempfile.mkdtemp(prefix="rankscope-zoo-"))
    print(ROW.format("case", "outcome", "cause", "rank", "line", "seconds", "right"), flush=True)
    results = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [
            pool.submit(run_and_judge, name, base / str(repetition) / name, arguments.root, ranks=arguments.ranks)
            for repetition in range(arguments.repeat)
            for name in names
        ]
        for future in waiting:
            results.append(future.result())
            print(row(results[-1]), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps([as_json(result) for result in results], indent=2) + "\n")

    wrong = [result for result in results if not result.judgement.right]
    print()
    for result in wrong:
        print(explain(result))
    if wrong or arguments.keep:
        print(f"the runs' folders are in {base}")
    else:
        shutil.rmtree(base)
    print(timing_line(results))
    print(total_line(results))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
