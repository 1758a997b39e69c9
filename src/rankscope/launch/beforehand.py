"""What `rankscope run` does before it starts ranks: the checks that were asked for, and the choice of GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.clusters.slurm_step import place_in_step
from rankscope.errors import CheckFailedBeforehand, UsageError
from rankscope.evidence.stacks import find_py_spy
from rankscope.launch.gpu_choice import choose_gpus
from rankscope.launch.nodes.meeting import leads_to_itself
from rankscope.launch.options import RunOptions
from rankscope.report import live

_OFF = frozenset({"", "0", "false", "no", "off"})


def run_wanted_checks(options: RunOptions) -> None:
    """RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST: a job that would fail in a minute is not started at all.

    Raises CheckFailedBeforehand with what is wrong.
    """
    wanted = [
        name
        for variable, name in (("RUN_IMPORT_TEST", "imports"), ("RUN_SINGLE_GPU_TEST", "single"))
        if os.environ.get(variable, "").strip().lower() not in _OFF
    ]
    if not wanted:
        return
    from rankscope.checks.command import parse, run_steps
    from rankscope.checks.say import ended

    script = options.torch.training_script
    arguments = list(wanted)
    plain_script = not (options.torch.module or options.torch.no_python)
    if "imports" in wanted and plain_script and Path(script).is_file():
        arguments += ["--script", script]
    report = run_steps(parse(arguments), os.environ, lambda done: live.say(f"before the start:\n{ended(done)}"))
    if not report.ok:
        failed = [step.step for step in report.steps if step.status == "fail"]
        raise CheckFailedBeforehand(failed)


def lacks_py_spy() -> str | None:
    """What a job without py-spy is told: less is seen, and nothing is refused."""
    if find_py_spy() is not None:
        return None
    return (
        "py-spy is not installed: a rank's stack is told by the rank itself alone, and by none that is stuck in native "
        "code (pip install py-spy)"
    )


def place_in_slurm(options: RunOptions) -> None:
    """Inside of `srun`, without any rendezvous option: Slurm knows the nodes. Says what it set."""
    torch = options.torch
    chosen_by_user = torch.standalone or torch.rdzv_endpoint or torch.rdzv_backend != "static"
    if chosen_by_user or torch.master_port is not None or str(torch.nnodes) not in ("1", "1:1") or torch.node_rank:
        return
    place = place_in_step(os.environ)
    if place is None:
        return
    if not options.processes_given and options.gpus is None and place.gpus:
        torch.nproc_per_node = str(place.gpus)
        live.say(f"{place.gpus} ranks on this node: Slurm gave it {place.gpus} GPUs")
    if place.nodes == 1:
        return
    torch.nnodes, torch.node_rank = str(place.nodes), place.node
    torch.master_addr, torch.master_port, torch.rdzv_id = place.master, place.port, place.job
    live.say(
        f"node {place.node} of {place.nodes} of Slurm's job {place.job}; the rendezvous is on "
        f"{place.master}:{place.port}"
    )


def check_master(options: RunOptions) -> None:
    """A static rendezvous at an address that is this machine itself works only where all nodes are this machine."""
    torch = options.torch
    several = str(torch.nnodes) not in ("1", "1:1")
    if torch.rdzv_backend != "static" or not several or torch.node_rank == 0:
        return
    endpoint = torch.rdzv_endpoint.rpartition(":")[0] if torch.rdzv_endpoint else torch.master_addr
    itself = leads_to_itself(endpoint)
    if itself:
        live.say(
            f"the master's address {endpoint} is this machine itself ({itself}): right only where all nodes run here; "
            "else give the address of node 0 with --master-addr"
        )


def place_on_gpus(options: RunOptions) -> None:
    """--gpus, and NUM_GPUS for the number of ranks; both say what they did."""
    chosen: tuple[int, ...] = ()
    if options.gpus is not None:
        chosen = choose_gpus(options.gpus, wait=options.wait_for_gpus, say=live.say)
    if options.processes_given:
        processes = options.torch.nproc_per_node
        if chosen and processes.isdigit() and int(processes) > len(chosen):
            raise UsageError(
                f"--nproc-per-node {processes} and only {len(chosen)} GPUs (--gpus {options.gpus}): "
                "leave one of the two out"
            )
        return
    number = os.environ.get("NUM_GPUS")
    named = os.environ.get("GPU_RANK", "")
    if named and not named.isdigit():
        raise UsageError(f"GPU_RANK={named} is no number of a GPU: write GPU_RANK=3, or unset it")
    if chosen:
        options.torch.nproc_per_node = str(len(chosen))
        live.say(f"{len(chosen)} ranks, one for each GPU")
    elif number:
        options.torch.nproc_per_node = str(gpus_by_variable(number))
        live.say(f"{number} ranks (NUM_GPUS={number}); --nproc-per-node changes that")


def gpus_by_variable(number: str) -> int:
    """NUM_GPUS as the number of ranks; raises UsageError where it is none."""
    if not number.isdigit() or int(number) < 1:
        raise UsageError(f"NUM_GPUS={number} is no number of GPUs: give 1 or more, or unset it")
    return int(number)
