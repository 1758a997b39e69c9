"""The page that shows several tools on the same cases, written from a result file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from comparison import Comparison, ToolResult
from expectation import Case, case_names, load_case

TEMPLATE = Path(__file__).resolve().parent / "table.template.md"
ORDER = ("torchrun", "torchfrtrace", "ft_launcher", "rankscope")
TITLES = {"torchfrtrace": "torchrun + torchfrtrace", "ft_launcher": "ft_launcher", "rankscope": "rankscope run"}
HEALTHY = "healthy"

Results = dict[tuple[str, str], ToolResult]


def document(comparison: Comparison) -> str:
    """The whole page: set-up, totals, then every case by cause."""
    cases = [load_case(name) for name in case_names()]
    tools = [tool for tool in ORDER if tool in comparison.tools]
    results = {(result.tool, result.case): result for result in comparison.results}
    versions = "; ".join(f"{_title(tool)}: {run.version}, {run.date}" for tool, run in comparison.tools.items())
    return (
        TEMPLATE.read_text()
        .replace("{limit}", f"{comparison.limit_s:.0f}")
        .replace("{cores}", str(comparison.cores))
        .replace("{versions}", versions)
        .replace("{totals}", totals(cases, tools, results) + (f"\n\n**{comparison.note}**" if comparison.note else ""))
        .replace("{cases}", case_tables(cases, tools, results))
    )


def totals(cases: Sequence[Case], tools: Sequence[str], results: Results) -> str:
    faults = [case for case in cases if not case.expect.healthy]
    hangs = [case for case in faults if case.expect.outcome == "hang"]
    crashes = [case for case in faults if case.expect.outcome == "crash"]
    ranked = [case for case in faults if case.expect.ranks]
    lined = [case for case in faults if case.expect.snippets]
    healthy = [case for case in cases if case.expect.healthy]
    rows: list[tuple[str, Sequence[Case], Callable[[ToolResult], bool]]] = [
        ("hangs seen", hangs, lambda result: result.seen),
        ("crashes seen", crashes, lambda result: result.seen),
        ("right rank", ranked, lambda result: result.right_rank is True),
        ("wrong rank named", ranked, lambda result: result.seen and bool(result.ranks) and not result.right_rank),
        ("right line", lined, lambda result: result.right_line is True),
        ("rank and line right", lined, lambda result: bool(result.right_rank) and bool(result.right_line)),
        ("healthy job reported or killed", healthy, lambda result: result.false_alarm),
        ("killed before the fault", faults, lambda result: result.false_alarm),
    ]
    lines = [_header(["", *(_title(tool) for tool in tools)])]
    for words, counted, counts in rows:
        cells = [_share([results.get((tool, case.name)) for case in counted], counts) for tool in tools]
        lines.append(_row([words, *cells]))
    for words, counted in (("seconds to see a hang", hangs), ("seconds to see a crash", crashes)):
        lines.append(_row([words, *(_seconds([results.get((tool, case.name)) for case in counted]) for tool in tools)]))
    return "\n".join(lines)


def case_tables(cases: Sequence[Case], tools: Sequence[str], results: Results) -> str:
    parts = []
    for cause in sorted({_cause(case) for case in cases}, key=lambda cause: (cause == HEALTHY, cause)):
        parts.append(f"### {cause}\n")
        parts.append(_header(["case", *(_title(tool) for tool in tools)]))
        for case in cases:
            if _cause(case) == cause:
                name = f"[{case.name}](../zoo/cases/{case.name}/train.py): {case.expect.description}"
                parts.append(_row([name, *(cell(results.get((tool, case.name))) for tool in tools)]))
        parts.append("")
    return "\n".join(parts).rstrip()


def cell(result: ToolResult | None) -> str:
    """What a tool made of a case, in a few words."""
    if result is None:
        return "not run"
    if result.false_alarm:
        return "**false alarm**"
    if not result.seen:
        return "–"
    words = [] if result.seconds is None else [f"{result.seconds:.1f} s"]
    if result.right_rank is not None:
        named = f" ({', '.join(str(rank) for rank in result.ranks)})" if result.ranks else ""
        words.append("rank ✓" if result.right_rank else f"rank ✗{named}")
    if result.right_line is not None:
        words.append("line ✓" if result.right_line else "line ✗")
    return ", ".join(words) or "seen"


def _cause(case: Case) -> str:
    return HEALTHY if case.expect.healthy else str(case.expect.cause)


def _title(tool: str) -> str:
    return TITLES.get(tool, tool)


def _share(results: Sequence[ToolResult | None], counts: Callable[[ToolResult], bool]) -> str:
    run = [result for result in results if result is not None]
    return f"{sum(counts(result) for result in run)} of {len(run)}"


def _seconds(results: Sequence[ToolResult | None]) -> str:
    seconds = [result.seconds for result in results if result is not None and result.seconds is not None]
    if not seconds:
        return "–"
    return f"{statistics.median(seconds):.1f} (worst {max(seconds):.1f})"


def _header(titles: Sequence[str]) -> str:
    return f"{_row(titles)}\n{_row(['---'] * len(titles))}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"
