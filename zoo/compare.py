"""Runs the zoo under several tools and writes what each of them made of it, side by side.

python zoo/compare.py --tools torchrun,torchfrtrace,ft_launcher --into FILE --jobs 5
python zoo/compare.py --tools rankscope --into FILE        adds rankscope's results to the same file
python zoo/compare.py --into FILE --table docs/zoo.md      writes the table again, without running anything
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from comparison import (
    Comparison,
    ToolResult,
    ToolRun,
    judge_peer,
    judge_rankscope,
    merged,
    read_comparison,
    write_comparison,
)
from expectation import case_names, load_case
from peers import FT_LAUNCHER_FOLDER, LIMIT_S, PEERS
from run import run_and_judge
from table import cell, document

RANKSCOPE = "rankscope"
TOOLS = (*PEERS, RANKSCOPE)


def run_tool(tool: str, name: str, folder: Path) -> ToolResult:
    """Runs one case under one tool, with its files under `folder` (made here)."""
    if tool == RANKSCOPE:
        result = run_and_judge(name, folder)
        return judge_rankscope(result.case, tool, result.seen, result.judgement)
    case = load_case(name)
    folder.mkdir(parents=True)
    return judge_peer(case, tool, PEERS[tool](case, folder))


def tool_version(tool: str) -> str:
    if tool == "ft_launcher":
        found = importlib.metadata.distributions(name="nvidia-resiliency-ext", path=[str(FT_LAUNCHER_FOLDER)])
        return next((f"nvidia-resiliency-ext {distribution.version}" for distribution in found), "not installed")
    package = RANKSCOPE if tool == RANKSCOPE else "torch"
    return f"{package} {importlib.metadata.version(package)}"


def run_all(tools: Sequence[str], names: Sequence[str], jobs: int, into: Path, keep: bool, missing: bool) -> None:
    """One tool after the other, so that no two runs of a case meet; every result is saved as it comes."""
    base = Path(tempfile.mkdtemp(prefix="rankscope-compare-"))
    for tool in tools:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        ran = {tool: ToolRun(today, tool_version(tool))}
        done = {result.case for result in so_far(into).results if result.tool == tool} if missing else set()
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(run_tool, tool, name, base / tool / name) for name in names if name not in done]
            for future in as_completed(running):
                result = future.result()
                print(f"{tool:<13} {result.case:<20} {cell(result)}", flush=True)
                write_comparison(into, merged(so_far(into), ran, [result]))
                if not keep:
                    shutil.rmtree(base / tool / result.case)
    if keep:
        print(f"the runs' folders are in {base}")
    else:
        shutil.rmtree(base)


def so_far(into: Path) -> Comparison:
    return read_comparison(into) if into.exists() else Comparison(LIMIT_S, os.cpu_count() or 1, {}, [])


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the zoo under several tools; write the results side by side.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to run; all when none is given")
    parser.add_argument("--tools", default="", help=f"tools to run, with commas between them: {','.join(TOOLS)}")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE", help="result file; new results are added")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page with the table there")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time; more disturb the timings of a busy tool")
    parser.add_argument("--note", help="put a remark on the measurement into the file; shown with the totals")
    parser.add_argument("--missing", action="store_true", help="run only what has no result in the file yet")
    parser.add_argument("--keep", action="store_true", help="keep the runs' folders")
    arguments = parser.parse_args(argv)
    arguments.tools = [tool for tool in arguments.tools.split(",") if tool]
    unknown = sorted(set(arguments.tools) - set(TOOLS))
    if unknown:
        parser.error(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    unknown = sorted(set(arguments.names) - set(case_names()))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; python zoo/run.py --list shows them all")
    if "ft_launcher" in arguments.tools and not (FT_LAUNCHER_FOLDER / "nvidia_resiliency_ext").is_dir():
        packages = "nvidia-resiliency-ext==0.4.1 defusedxml"
        parser.error(f"ft_launcher is missing: pip install --no-deps --target {FT_LAUNCHER_FOLDER} {packages}")
    if not arguments.tools and not arguments.into.is_file():
        parser.error(f"{arguments.into} is not there, and no --tools to make it")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    if arguments.tools:
        names = arguments.names or case_names()
        run_all(arguments.tools, names, arguments.jobs, arguments.into, arguments.keep, arguments.missing)
    if arguments.note is not None:
        write_comparison(arguments.into, msgspec.structs.replace(so_far(arguments.into), note=arguments.note))
    if arguments.table is not None:
        try:
            comparison = read_comparison(arguments.into)
        except msgspec.DecodeError as error:
            print(f"{arguments.into} is not a result file of this program: {error}", file=sys.stderr)
            return 2
        arguments.table.write_text(document(comparison))
    return 0


if __name__ == "__main__":
    sys.exit(main())
