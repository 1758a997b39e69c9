"""How long the rules take over a job of thousands of living ranks, and how much memory, without a network.

    python benchmarks/many_ranks.py --ranks 4096

Three jobs in which every rank waits: for one that stands still, for one whose loader ended early, and in a ring of
messages that all go the same way round. Processor time counts; `PYTHONPATH` of another checkout gives what it was.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

from msgspec.structs import replace

import nodes
from rankscope.evidence.model import Evidence, Frame, Loader, RankEvidence
from rankscope.launch.nodes.parcel import merge, travelling
from rankscope.report.conclude import conclude

RANKS_A_NODE = 8
NEXT = (Frame("main", "/job/train.py", 70, user=True),)


def standing(ranks: int) -> Evidence:
    """The last one does not come to the call that all others are in."""
    count = ranks // RANKS_A_NODE
    newest = travelling(count)
    parts = [nodes.made_up(node, RANKS_A_NODE, ranks, newest) for node in range(count)]
    return merge(parts[0], parts[1:], ())


def ended_early(ranks: int) -> Evidence:
    """Every rank is at the end of its pass over a loader; each third one had a batch more."""

    def with_loader(seen: RankEvidence) -> RankEvidence:
        assert seen.progress is not None
        loader = Loader(0, 100 + (seen.rank % 3 == 0), True, 2, False, seen.progress.changed_at, NEXT, 101)
        return replace(seen, progress=replace(seen.progress, loader=loader))

    job = standing(ranks)
    return replace(job, ranks=tuple(map(with_loader, job.ranks)))


def ring(ranks: int) -> Evidence:
    """Each sends to the next and waits until that one receives, which it never does."""

    def sending(seen: RankEvidence) -> RankEvidence:
        assert seen.progress is not None
        last = seen.progress.calls[-1]
        sent = replace(last, op="send", peer=(seen.rank + 1) % ranks, left_at=None, index=last.index + 1)
        calls = (*(replace(call, left_at=call.left_at or call.entered_at) for call in seen.progress.calls), sent)
        return replace(seen, collectives=(), progress=replace(seen.progress, calls=calls))

    job = standing(ranks)
    return replace(job, ranks=tuple(map(sending, job.ranks)))


JOBS: dict[str, Callable[[int], Evidence]] = {
    "one stands still": standing,
    "loaders end early": ended_early,
    "ring of messages": ring,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096)
    chosen = parser.parse_args()
    print("| job | ranks | verdict | seconds | peak memory |")
    print("| --- | ---: | --- | ---: | ---: |")
    for name, make in JOBS.items():
        evidence = make(chosen.ranks)
        begun = time.process_time()
        verdict = conclude(evidence)
        took = time.process_time() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        blamed = [culprit.rank for culprit in verdict.culprits][:3]
        print(f"| {name} | {chosen.ranks} | {verdict.cause} {blamed} | {took:.1f} | {peak} MB |", flush=True)


if __name__ == "__main__":
    main()
