"""`rankscope launch`: start the same run elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.errors import UsageError
from rankscope.spelling import nearest

USAGE = """\
usage: rankscope launch PLACE [options] -- [options of rankscope run] SCRIPT [script arguments]

places:
  slurm   write the batch script and submit it     rankscope launch slurm --nodes 2 -- --nproc-per-node 8 train.py
  vast    rent a machine there, run, bring back    rankscope launch vast --config my.yaml --num-gpus 2 --auto-shutdown
  sky     write a SkyPilot task                    rankscope launch sky --nodes 2 --gpus 8 --gpu H100 -- train.py
  k8s     write a Kubernetes Job or JobSet         rankscope launch k8s --nodes 2 --gpus 8 --image IMAGE -- train.py

  rankscope launch PLACE --help     options of a place
"""


def _slurm(arguments: list[str]) -> int:
    from rankscope.clusters.slurm_script import launch_slurm

    return launch_slurm(arguments)


def _vast(arguments: list[str]) -> int:
    from rankscope.clusters.vast.command import launch_vast

    return launch_vast(arguments)


def _sky(arguments: list[str]) -> int:
    from rankscope.clusters.manifests import launch_manifest

    return launch_manifest("sky", arguments)


def _k8s(arguments: list[str]) -> int:
    from rankscope.clusters.manifests import launch_manifest

    return launch_manifest("k8s", arguments)


PLACES: dict[str, Callable[[list[str]], int]] = {"slurm": _slurm, "vast": _vast, "sky": _sky, "k8s": _k8s}


def launch_command(arguments: list[str]) -> int:
    """The verb."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    place = PLACES.get(arguments[0])
    if place is None:
        raise UsageError(
            f"no place '{arguments[0]}' to launch at{nearest(arguments[0], PLACES)}; there is {', '.join(PLACES)}"
        )
    return place(arguments[1:])
