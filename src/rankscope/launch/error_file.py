"""The launcher's own TORCHELASTIC_ERROR_FILE: whoever started us reads there what ended the job, as with torchrun."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.diagnosis.verdict import Verdict
from rankscope.mask import mask_values

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def write_error_file(target: str, verdict: Verdict, code: int, left: Mapping[int, Path]) -> None:
    """Copies the error file of the rank that began it, with its exit code. Where no rank left one (a hang, a signal),
    the verdict's headline stands in its place. `left`: rank → its error file, in the order in which they failed."""
    guilty = [culprit.rank for culprit in verdict.culprits]
    ranks = sorted(left, key=lambda rank: rank not in guilty)
    content: dict[str, Any] = {"message": {"message": f"{verdict.outcome}: {verdict.headline}", "extraInfo": _now()}}
    own = None
    for rank in reversed(ranks):
        found = _read(left[rank])
        if found is not None:
            content, own = found, verdict.exit_codes.get(rank)
    if isinstance(content.get("message"), dict):
        content["message"]["errorCode"] = code if own is None else own
    temporary = f"{target}.{os.getpid()}"
    Path(temporary).write_text(json.dumps(mask_values(content)), encoding="utf-8")
    os.replace(temporary, target)


def _now() -> dict[str, str]:
    return {"timestamp": str(int(time.time()))}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the program does not use torch's `record`, or was killed while it wrote
    return content if isinstance(content, dict) else None
