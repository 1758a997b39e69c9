"""`python -m rankscope` that keeps every evidence it diagnoses, under ZOO_LOOKS, before it is diagnosed.

With ZOO_LOOK_EVERY it also takes a look each so many seconds, whatever the job does: a healthy one must never be called
a hang, at no moment of it.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path

from rankscope.cli import main
from rankscope.diagnosis.finding import Ruling
from rankscope.evidence.model import Evidence
from rankscope.evidence.store import save_evidence
from rankscope.launch.job import Job, RankProcess
from rankscope.report import conclude as door

_examine = door.examine
_started = Job.started
_folder = Path(os.environ["ZOO_LOOKS"])
_every_s = float(os.environ.get("ZOO_LOOK_EVERY", "0"))
_numbers = itertools.count()


def examine(evidence: Evidence) -> Ruling:
    save_evidence(evidence, _folder / f"look-{next(_numbers):03}")
    return _examine(evidence)


def started(job: Job, attempt: int, world_size: int, ranks: list[RankProcess]) -> None:
    _started(job, attempt, world_size, ranks)
    if _every_s and attempt == 0:
        threading.Thread(target=_look_on, args=(job,), daemon=True).start()


def _look_on(job: Job) -> None:
    while job.attempt == 0 and not job.stopping:
        time.sleep(_every_s)
        if len(job.living()) == len(job.ranks):
            save_evidence(job.collect("still"), _folder / f"look-{next(_numbers):03}")


if __name__ == "__main__":
    door.examine = examine  # before the launcher imports it
    Job.started = started  # type: ignore[method-assign]
    sys.exit(main())
