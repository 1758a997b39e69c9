"""Rounds of chaos as rows, and many of them as the table of docs/reliability.md."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from chaos_round import Round


def as_row(done: Round) -> str:
    codes, outcomes = ", ".join(map(str, done.codes)), ", ".join(done.outcomes)
    when, faults = f"{done.phase} + {done.after_s:4.2f}s", "; ".join(done.faults) or "none"
    return (
        f"| {done.number:>5} | {done.nodes} | {done.program:<7} | {done.victim:<13} | {done.blow:<17} | {when} "
        f"| {codes:>4} | {outcomes:<12} | {done.seconds:5.1f}s | {faults} |"
    )


def as_line(done: Round, seed: int, commit: str) -> str:
    """What is as ever is left out: there are many of them."""
    told = {each.name: getattr(done, each.name) for each in fields(Round)}
    news = {name: value for name, value in told.items() if value not in (None, [], 0, False)}
    return json.dumps({"commit": commit, "seed": seed, **news, "number": done.number}) + "\n"


def rounds_in(files: Iterable[Path], since: str | None) -> list[Round]:
    """With `since`, the rounds of that commit and of those made after it; of changed sources none."""
    told = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    if since is not None:
        counted = {commit for commit in {each["commit"] for each in told} if _contains(commit, since)}
        told = [each for each in told if each["commit"] in counted]
    return [Round(**{name: value for name, value in each.items() if name not in ("seed", "commit")}) for each in told]


def _contains(commit: str, earlier: str) -> bool:
    asked = ["git", "-C", str(Path(__file__).parent), "merge-base", "--is-ancestor", earlier, commit]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def table(files: Iterable[Path], since: str | None = None) -> str:
    """One row for each victim: rounds on one node and on two, blows that hit, and each kind of fault."""
    rounds = rounds_in(files, since)
    lines = [
        "| struck | rounds | of them on two nodes | blow came too early or too late | rounds with a fault |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [_line(victim, [r for r in rounds if r.victim == victim]) for victim in sorted({r.victim for r in rounds})]
    lines.append(_line("**all**", rounds))
    blows = Counter(done.blow for done in rounds if done.hit)
    faults = Counter(fault.split(":")[0] for done in rounds for fault in done.faults)
    ends = sorted(done.ended_after_s for done in rounds if done.ended_after_s is not None)
    programs = Counter(done.program for done in rounds)
    lines += ["", "Jobs: " + ", ".join(f"{name} {count}" for name, count in sorted(programs.items())) + "."]
    lines += ["Blows: " + ", ".join(f"{blow} {count}" for blow, count in sorted(blows.items())) + "."]
    if ends:
        median, most = ends[len(ends) // 2], ends[-1]
        lines.append(f"The command ended {median:.1f} s after its last rank (median), {most:.1f} s at most.")
    lines.append("Faults: " + (", ".join(f"{what} {count}" for what, count in faults.most_common()) or "none") + ".")
    return "\n".join(lines)


def _line(name: str, rounds: list[Round]) -> str:
    two, missed = sum(done.nodes == 2 for done in rounds), sum(not done.hit for done in rounds)
    return f"| {name} | {len(rounds)} | {two} | {missed} | {sum(bool(done.faults) for done in rounds)} |"
