"""Put first on PYTHONPATH by the zoo: adds ft_launcher's heartbeats to a program that has none.

The rank connects to its monitor when its process group is made, and says that it lives at every optimizer step:
what ft_launcher's documentation asks a user to write into the training loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MONITORED = "torch.distributed"


class _AfterImport(MetaPathFinder):
    """Adds the heartbeats once torch.distributed is imported; a program without torch stays without."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != MONITORED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            _add_heartbeats(module)

        spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return spec


def _add_heartbeats(distributed: Any) -> None:
    owner = os.getpid()
    client: list[Any] = []
    join = distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        join(*args, **kwargs)
        if client or os.getpid() != owner:
            return
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
        from torch.optim.optimizer import register_optimizer_step_post_hook

        client.append(RankMonitorClient())
        client[0].init_workload_monitoring()
        register_optimizer_step_post_hook(lambda *_: client[0].send_heartbeat())

    distributed.init_process_group = init_process_group
    distributed.distributed_c10d.init_process_group = init_process_group


if "RANK" in os.environ and "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
    sys.meta_path.insert(0, _AfterImport())
