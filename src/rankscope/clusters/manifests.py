"""`rankscope launch sky|k8s`: the same run as a SkyPilot task, a Kubernetes Indexed Job or a JobSet."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankscope.clusters.what_runs import (
    refuse_missing_script,
    refuse_other_numbers,
    refuse_own_options,
    refuse_without_script,
)
from rankscope.clusters.yaml_text import Value, to_yaml
from rankscope.errors import UsageError
from rankscope.spelling import mended

PORT = 29500
_GROUP = "node"
_CONTAINER = "train"
_FAIL_AGAIN = (2, 76, 81, 126, 127)
"""Exit codes of what will fail again: a mistake in the command, wrong numbers, what the verdict proves
(`--retry-codes`), a program that is not in the image."""
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")
"""A size as Kubernetes writes it."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    command: tuple[str, ...]
    """What stands after `rankscope run`."""
    name: str
    nodes: int
    gpus: int
    """Of each node; 0 for processors only."""
    gpu: str | None = None
    """Its kind, as SkyPilot names it."""
    image: str | None = None
    shm: str = "16Gi"
    restarts: int = 0
    """Of the whole run."""


def sky_task(run: ClusterRun) -> str:
    """A SkyPilot task: `sky launch task.yaml`."""
    resources: dict[str, Value] = {"accelerators": f"{run.gpu}:{run.gpus}"} if run.gpus and run.gpu else {}
    options = ["--nnodes", '"$SKYPILOT_NUM_NODES"', "--node-rank", '"$SKYPILOT_NODE_RANK"']
    options += ["--master-addr", '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"', "--master-port", str(PORT)]
    ranks = [] if _says_ranks(run.command) else ["--nproc-per-node", '"${SKYPILOT_NUM_GPUS_PER_NODE:-1}"']
    line = " ".join(["rankscope run", *options, *ranks, shlex.join(run.command)])
    task: dict[str, Value] = {"name": run.name, "num_nodes": run.nodes, "workdir": "."}
    if resources:
        task["resources"] = resources
    task["setup"] = "pip install rankscope\n"
    task["run"] = f"{line}\n"
    return to_yaml(task)


def k8s_manifest(run: ClusterRun) -> str:
    """An Indexed Job, one pod a node, and the headless Service by which the pods find the first: `kubectl apply -f`."""
    job: dict[str, Value] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": run.name},
        "spec": {
            **_indexed_job(run, master=f"{run.name}-0.{run.name}", subdomain=run.name),
            # Every pod of a run that failed is counted, and all of them fail.
            "backoffLimit": run.restarts * run.nodes,
        },
    }
    service: dict[str, Value] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": run.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": run.name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    return f"{to_yaml(service)}---\n{to_yaml(job)}"


def jobset_manifest(run: ClusterRun) -> str:
    """A JobSet: its controller makes the Service, and starts all pods anew when one of them fails."""
    # The controller names pods NAME-GROUP-JOB-POD and their network after the set.
    master = f"{run.name}-{_GROUP}-0-0.{run.name}"
    jobset: dict[str, Value] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": run.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # A Job that its own policy has failed would fail again.
            "failurePolicy": {
                "maxRestarts": run.restarts,
                "rules": [{"name": "fails-again", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [{"name": _GROUP, "replicas": 1, "template": {"spec": _indexed_job(run, master=master)}}],
        },
    }
    return to_yaml(jobset)


def _indexed_job(run: ClusterRun, *, master: str, subdomain: str | None = None) -> dict[str, Value]:
    options = ["--nnodes", str(run.nodes), "--node-rank", '"$JOB_COMPLETION_INDEX"']
    options += ["--master-addr", master, "--master-port", str(PORT)]
    ranks = [] if _says_ranks(run.command) else ["--nproc-per-node", str(max(run.gpus, 1))]
    # exec: the launcher gets the pod's signals, and its exit code is the container's.
    line = " ".join(["exec rankscope run --retry-codes", *options, *ranks, shlex.join(run.command)])
    container: dict[str, Value] = {
        "name": _CONTAINER,
        "image": run.image or "",
        "command": ["/bin/sh", "-c", line],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if run.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": run.gpus}}
    pod: dict[str, Value] = {} if subdomain is None else {"subdomain": subdomain}
    pod |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": run.shm}}],
    }
    return {
        "completionMode": "Indexed",
        "completions": run.nodes,
        "parallelism": run.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": _CONTAINER, "operator": "In", "values": list(_FAIL_AGAIN)},
                },
                # Evicted or preempted: nobody's failure.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"spec": pod},
    }


def _says_ranks(command: tuple[str, ...]) -> bool:
    return any(word.replace("_", "-").startswith("--nproc-per-node") for word in command)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see '{self.prog} --help')")


def launch_manifest(place: str, arguments: list[str]) -> int:
    """The verb: prints the file, or writes it with --output."""
    starts = {"sky": "sky launch FILE", "k8s": "kubectl apply -f FILE"}[place]
    parser = _Parser(
        prog=f"rankscope launch {place}",
        usage=f"rankscope launch {place} [options] -- [options of rankscope run] SCRIPT [script arguments]",
        description=f"Write the file that starts the run there: {starts}",
    )
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of each node")
    parser.add_argument("--name", help="of the run (default: the script's name)")
    parser.add_argument("--output", type=Path, help="write it there (default: standard output)")
    if place == "sky":
        parser.add_argument("--gpu", metavar="KIND", help="as SkyPilot names it: H100")
    else:
        parser.add_argument("--image", required=True, help="with Python, torch, rankscope and the program in it")
        parser.add_argument("--shm", default="16Gi", help="size of /dev/shm (default: 16Gi)")
        parser.add_argument("--jobset", action="store_true", help="a JobSet, where its controller is installed")
        parser.add_argument(
            "--max-restarts",
            type=int,
            default=0,
            metavar="N",
            help="start the pods anew so often, unless the verdict proves that they would fail again (default: 0)",
        )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="options of rankscope run, and the script")
    chosen = parser.parse_args(arguments)
    refuse_own_options(chosen.command, parser)
    command = tuple(chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command)
    if not command:
        raise UsageError(f"nothing to run: write rankscope launch {place} --nodes 2 -- train.py")
    if chosen.nodes < 1 or chosen.gpus < 0:
        raise UsageError("--nodes must be at least 1 and --gpus at least 0")
    if place == "sky" and chosen.gpus and not chosen.gpu:
        raise UsageError("--gpus needs --gpu: say which kind, as --gpu H100")
    refuse_without_script(command)
    if place == "sky":  # it is sent from here; a container has its own in the image
        refuse_missing_script(command)
    refuse_other_numbers(command, nodes=chosen.nodes, gpus=chosen.gpus or None)
    if chosen.name is not None and not chosen.name.strip():
        raise UsageError("--name is empty: give a name, or leave it out")
    if place == "sky" and chosen.gpu and not chosen.gpus:
        raise UsageError(f"--gpu {chosen.gpu} needs --gpus: say how many of each node, as --gpus 8")
    name = _name(chosen.name or next((Path(word).stem for word in command if word.endswith(".py")), "train"))
    if place == "sky":
        text = sky_task(ClusterRun(command, name, chosen.nodes, chosen.gpus, gpu=chosen.gpu))
    else:
        text = _kubernetes(chosen, command, name)
    if chosen.output is None:
        sys.stdout.write(text)
        return 0
    try:
        chosen.output.write_text(text)
    except OSError as error:
        raise UsageError(f"--output {chosen.output} cannot be written: {error.strerror}") from error
    print(f"written; start it with {starts.replace('FILE', str(chosen.output))}")
    return 0


def _kubernetes(chosen: argparse.Namespace, command: tuple[str, ...], name: str) -> str:
    if not chosen.image.strip():
        raise UsageError("--image is empty: name one with Python, torch, rankscope and the program in it")
    if len(chosen.image.split()) != 1:
        raise UsageError(f"--image '{chosen.image}' has spaces: write it as REGISTRY/NAME:TAG")
    if not _QUANTITY.fullmatch(chosen.shm):
        raise UsageError(f"--shm {chosen.shm} is no size of Kubernetes: write 16Gi or 500Mi")
    if chosen.max_restarts < 0:
        raise UsageError("--max-restarts must be at least 0")
    run = ClusterRun(
        command=command,
        name=name,
        nodes=chosen.nodes,
        gpus=chosen.gpus,
        image=chosen.image,
        shm=chosen.shm,
        restarts=chosen.max_restarts,
    )
    return jobset_manifest(run) if chosen.jobset else k8s_manifest(run)


def _name(text: str) -> str:
    """As Services must be named: letters, digits and dashes, a letter first; room for the numbers of pods."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:45].strip("-")
    return name if name[:1].isalpha() else f"run-{name}".strip("-")
