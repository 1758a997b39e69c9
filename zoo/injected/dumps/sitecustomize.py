"""Put first on PYTHONPATH by the zoo: dumps a rank's flight recorder for torchfrtrace.

A thread dumps whenever a new request file appears in the folder FLIGHT_DUMPS, and once more when the rank ends by
itself. Gloo's dumps name no groups, on which torchfrtrace fails: the groups are filled in as the rank knows them.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

POLL_S = 0.05

Groups = dict[str, dict[str, str]]


def _note_groups(groups: Groups) -> None:
    """Adds the groups that exist now; those already left stay noted, as their collectives stay recorded."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return
    for group, name in list(world.pg_names.items()):
        ranks = sorted(world.pg_group_ranks.get(group, {}))
        if ranks:  # empty while the group is still being made
            groups[name] = {"name": name, "desc": group.group_desc, "ranks": str(ranks)}


def _dump(folder: Path, groups: Groups) -> None:
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    from torch._C._distributed_c10d import _dump_fr_trace

    _note_groups(groups)
    dump = pickle.loads(_dump_fr_trace(True, True, False))
    dump["entries"] = [entry for entry in dump.get("entries", []) if entry["process_group"][0] in groups]
    dump["pg_config"] = dict(groups)
    folder.mkdir(exist_ok=True)
    unfinished = folder / f".{os.getpid()}"
    unfinished.write_bytes(pickle.dumps(dump))
    unfinished.rename(folder / f"rank_{os.environ['RANK']}")


def _importing() -> bool:
    """A dump with stacks touches torch's compiler; while the program itself imports it, that import would fail."""
    return any(
        name.startswith("torch.") and getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
    )


def _serve(folder: Path, groups: Groups) -> None:
    answered: set[str] = set()
    while True:
        time.sleep(POLL_S)
        _note_groups(groups)
        requests = {name for name in os.listdir(folder) if name.startswith("request_")} - answered
        if not requests or _importing():
            continue
        for request in sorted(requests):
            answered.add(request)
            _dump(folder / request.removeprefix("request_"), groups)


def _start(folder: Path) -> None:
    owner, groups = os.getpid(), Groups()

    def dump_at_end() -> None:
        if os.getpid() == owner:
            _dump(folder / "end", groups)

    atexit.register(dump_at_end)
    threading.Thread(target=_serve, args=(folder, groups), daemon=True).start()


if "RANK" in os.environ and "FLIGHT_DUMPS" in os.environ:
    _start(Path(os.environ["FLIGHT_DUMPS"]))
