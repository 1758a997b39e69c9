"""`report.html` of a run: made from the evidence that its last verdict was drawn from."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import SCHEMA, Evidence
from rankscope.held_folders import inside
from rankscope.private_files import write_private


def leave_page(folder: Path, verdict: Verdict, evidence: Evidence | None) -> Verdict:
    """Writes the page and hands back the verdict that names it. Without evidence it holds what the verdict says.

    Raises what goes wrong: the caller notes it, and the verdict stands without a page.
    """
    # Templates are loaded only by a run that ends badly.
    from rankscope.report.html.page import FILE_NAME, render_page
    from rankscope.report.views.incident import incident_of

    page = render_page(
        incident_of(verdict, evidence if evidence is not None else _nothing_seen(verdict), inside(folder))
    )
    write_private(folder / FILE_NAME, page.encode())
    return replace(verdict, report=FILE_NAME)


def _nothing_seen(verdict: Verdict) -> Evidence:
    at = verdict.ended_at or time.time()
    return Evidence(SCHEMA, at, verdict.started_at or at, "end", verdict.world_size, ranks=())
