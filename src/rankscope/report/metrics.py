"""What a board shows, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankscope.diagnosis.verdict import Verdict
from rankscope.report.board import Look

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(look: Look, still: Mapping[int, float], verdict: Verdict | None) -> str:
    """`verdict`: what is said of the job now; None while there is nothing to say."""
    alive = sum(not row.ended for row in look.ranks)
    families = [
        _family("rankscope_ranks", "gauge", "Ranks on this node.", [({}, len(look.ranks))]),
        _family("rankscope_ranks_alive", "gauge", "Ranks that have not ended.", [({}, alive)]),
        _family("rankscope_steps_total", "counter", "Steps that all ranks have made.", [({}, look.figures.steps)]),
        _family(
            "rankscope_steps_per_second",
            "gauge",
            "Steps a second of all ranks together.",
            [({}, look.figures.rate or 0.0)],
        ),
        _family(
            "rankscope_rank_steps_total",
            "counter",
            "Steps of a rank.",
            [({"rank": row.ranks[0]}, row.steps) for row in look.ranks],
        ),
        _family(
            "rankscope_rank_steps_per_second",
            "gauge",
            "Steps a second of a rank, over the last ten seconds.",
            [({"rank": row.ranks[0]}, row.steps_per_s) for row in look.ranks if row.steps_per_s is not None],
        ),
        _family(
            "rankscope_rank_phase_share",
            "gauge",
            "Share of the last ten seconds' time that a rank spent in a phase.",
            [
                ({"rank": row.ranks[0], "phase": name}, round(share, 4))
                for row in look.ranks
                for name, share in row.shares
            ],
        ),
        _family(
            "rankscope_rank_still_seconds",
            "gauge",
            "Seconds since a rank's last sign of life.",
            [({"rank": rank}, round(seconds, 1)) for rank, seconds in sorted(still.items())],
        ),
        _family(
            "rankscope_verdict",
            "gauge",
            "1 for what is said of the job now.",
            [(_about(verdict), 1)],
        ),
    ]
    return "".join(families)


def _about(verdict: Verdict | None) -> dict[str, object]:
    if verdict is None:
        return {"outcome": "running", "cause": "", "certainty": ""}
    return {"outcome": verdict.outcome, "cause": verdict.cause or "", "certainty": verdict.certainty}


def _family(
    name: str, kind: str, meaning: str, samples: Iterable[tuple[Mapping[str, object], float | int | None]]
) -> str:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
