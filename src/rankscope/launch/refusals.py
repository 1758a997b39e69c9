"""What `rankscope run` refuses before it starts anything: each mistake in one line, with what to write instead."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from rankscope.errors import UsageError
from rankscope.given_paths import not_there
from rankscope.launch.gpu_choice import parse_wish
from rankscope.report import live
from rankscope.spelling import nearest

MOST_PROCESSES = 4096
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "ray", "horovodrun"})
_DEVICES = ("auto", "gpu", "cpu", "xpu")
_STREAMS = "write 1 for stdout, 2 for stderr, 3 for both, or some ranks' alone as in 0:1,1:2"
_MISPLACED = frozenset(
    f"--{name}"
    for name in (
        *("nproc-per-node", "nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "rdzv-id", "max-restarts"),
        *("on-hang", "on-nan", "on-corrupt", "stall-after", "comm-debug", "comm-timeout", "serialize-imports"),
    )
)
"""Options of `run` that hardly any script has."""


def refuse_mistakes(namespace: argparse.Namespace) -> None:
    """Raises UsageError for what would fail, hang or silently do nothing."""
    if namespace.no_python and namespace.module:
        raise UsageError("--no-python and --module exclude each other: leave one out")
    if namespace.no_python:
        _refuse_program(namespace.training_script)
    elif namespace.module:
        _refuse_module(namespace.training_script)
    else:
        _refuse_script(namespace.training_script)
    if namespace.wait and namespace.gpus is None:
        raise UsageError("--wait waits for free GPUs: say which with --gpus auto:2")
    if namespace.gpus is not None:
        parse_wish(namespace.gpus)
    _refuse_processes(namespace)
    _refuse_without_probe(namespace)
    _refuse_nodes(namespace)
    _refuse_rendezvous(namespace)
    _refuse_watching(namespace)
    _tell_misplaced(namespace)


def _refuse_program(program: str) -> None:
    if shutil.which(program) is not None:
        return
    if os.path.isfile(program):
        raise UsageError(f"'{program}' is no program that can be started: chmod +x it, or leave --no-python out")
    raise UsageError(f"no program '{program}' is on the path or at that place")


def _refuse_module(name: str) -> None:
    if name.endswith(".py") or "/" in name:
        module = Path(name).stem if Path(name).is_absolute() else ".".join(Path(name).with_suffix("").parts)
        raise UsageError(f"-m takes the name of a module, not a file: write -m {module}, or leave -m out")
    if not all(name.split(".")):
        raise UsageError(f"-m {name}: write the name of a module, as in -m package.train")
    # Another interpreter finds other modules.
    if "PYTHON_EXEC" not in os.environ and not _is_found(name.partition(".")[0]):
        raise UsageError(f"no module '{name.partition('.')[0]}' is found (current folder: {os.getcwd()}): install it")


def _is_found(package: str) -> bool:
    """As `python -m` in this folder finds it: nothing is imported for that."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return True  # it is there, in a way that only the import itself can tell
    finally:
        sys.path[:] = before


def _refuse_script(script: str) -> None:
    if os.path.isdir(script):
        if not os.path.exists(os.path.join(script, "__main__.py")):
            raise UsageError(f"'{script}' is a folder without a __main__.py; name the script itself")
        return
    if not os.path.exists(script):
        raise UsageError(_no_script(script))
    if not stat.S_ISREG(os.stat(script).st_mode):
        raise UsageError(f"'{script}' is a pipe or a device, which only one rank could read: give a file")
    if not os.access(script, os.R_OK):
        raise UsageError(f"the script '{script}' may not be read by you: chmod u+r it")
    if script.endswith(".ipynb"):
        raise UsageError(
            f"'{script}' is a notebook: make a script of it first (jupyter nbconvert --to script '{script}'), or watch "
            "the notebook's own launcher, as docs/launchers.md says"
        )
    if script.endswith((".sh", ".bash")):
        raise UsageError(
            f"'{script}' is a shell script, and every rank would run it as Python: give the Python script in it, or "
            f"write rankscope watch -- bash {script}"
        )


def _no_script(name: str) -> str:
    """Why there is none of that name; people write what they would write after `torchrun`, and before it."""
    program = os.path.basename(name)
    if re.fullmatch(r"python[\d.]*", program):
        return f"'{name}' is what every script is run with: leave it out, as in rankscope run train.py"
    if program in _LAUNCHERS:
        return f"'{name}' is a launcher of its own: write rankscope watch -- {program} ..., or leave it out"
    if re.fullmatch(r"[\d.]+(:\d+)?", name):
        return f"there is no script '{name}': --page takes a port or ADDRESS:PORT, as in --page 0.0.0.0:8080"
    return not_there(name, what="the script")


def _refuse_processes(namespace: argparse.Namespace) -> None:
    processes = namespace.nproc_per_node
    if processes.lstrip("-").isdigit() and int(processes) < 1:
        raise UsageError(f"--nproc-per-node {processes}: a job needs at least 1 process per node")
    if not processes.isdigit():
        if processes not in _DEVICES:
            raise UsageError(f"--nproc-per-node {processes}: give a number, or one of {', '.join(_DEVICES)}")
        return
    if int(processes) > MOST_PROCESSES:
        raise UsageError(f"--nproc-per-node {processes}: give at most {MOST_PROCESSES} processes for a machine")
    shown = [part.strip() for part in (namespace.local_ranks_filter or "").split(",")]
    if shown != [""] and all(part.isdigit() and int(part) >= int(processes) for part in shown):
        raise UsageError(
            f"--local-ranks-filter {namespace.local_ranks_filter} would show nothing: "
            f"the ranks of this machine are 0 to {int(processes) - 1}"
        )


def _refuse_without_probe(namespace: argparse.Namespace) -> None:
    if not namespace.no_probe:
        return
    for option, given in (
        ("--stages on", namespace.stages == "on"),
        ("--on-nan stop", namespace.on_nan == "stop"),
        ("--on-corrupt stop", namespace.on_corrupt == "stop"),
    ):
        if given:
            raise UsageError(f"{option} rests on what the probe sees inside each rank: leave --no-probe out")


def _refuse_nodes(namespace: argparse.Namespace) -> None:
    if re.fullmatch(r"\d+(:\d+)?", str(namespace.nnodes)) is None:
        raise UsageError(f"--nnodes {namespace.nnodes}: give a number of machines, or MIN:MAX as in 1:4")
    least, most = (int(each) for each in (*str(namespace.nnodes).split(":"), str(namespace.nnodes))[:2])
    if least < 1 or most < least:
        raise UsageError(f"--nnodes {namespace.nnodes}: give 1 or more, or MIN:MAX with the smaller first, as in 1:4")
    if not 0 <= namespace.node_rank < max(1, most):
        raise UsageError(f"--node-rank {namespace.node_rank}: nodes count from 0, so give 0 to {most - 1}")
    if namespace.standalone and least > 1:
        raise UsageError(
            f"--standalone is for one machine, and --nnodes {namespace.nnodes} waits for more: leave one out, "
            "and give --rdzv-backend c10d --rdzv-endpoint HOST:29400 on every machine"
        )
    if namespace.master_port is not None and not 0 <= namespace.master_port < 65536:
        raise UsageError(f"--master-port {namespace.master_port}: a port lies between 1 and 65535, and 29500 is usual")


def _refuse_rendezvous(namespace: argparse.Namespace) -> None:
    known = _rendezvous_backends()
    if known and namespace.rdzv_backend not in known:
        close = nearest(namespace.rdzv_backend, known, "; ")
        raise UsageError(f"--rdzv-backend {namespace.rdzv_backend} is not known{close}; there are {', '.join(known)}")
    address = namespace.master_addr
    if address is not None and (not address.strip() or " " in address.strip() or "/" in address):
        raise UsageError(
            f"--master-addr '{address}' is no address (a variable that is not set?): give the host of node 0, as node-0"
        )
    if namespace.rdzv_endpoint and not namespace.standalone:
        _refuse_endpoint(namespace.rdzv_endpoint)


def _refuse_endpoint(endpoint: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        parse_rendezvous_endpoint(endpoint, default_port=0)
    except ValueError:
        raise UsageError(f"--rdzv-endpoint {endpoint}: write HOST:PORT, as in node-0:29400") from None


def _rendezvous_backends() -> list[str]:
    """Those that torch has registered; none where it no longer tells."""
    from torch.distributed.elastic.rendezvous import registry

    known: Any = getattr(registry, "handler_registry", None) or getattr(registry, "rendezvous_handler_registry", None)
    return sorted(getattr(known, "_registry", {}))


def _refuse_watching(namespace: argparse.Namespace) -> None:
    interval = namespace.monitor_interval
    if not math.isfinite(interval) or interval < 0:
        raise UsageError(f"--monitor-interval {interval:g}: give seconds, as 0.1")
    for name in filter(None, (getattr(namespace, "signals_to_handle", None) or "").split(",")):
        if name.strip() not in signal.Signals.__members__:
            close = nearest(name.strip(), signal.Signals.__members__)
            raise UsageError(f"--signals-to-handle: there is no signal '{name.strip()}'{close}; write SIGTERM,SIGINT")
    if namespace.restart_always and not namespace.max_restarts:
        raise UsageError("--restart-always is about --max-restarts, which is 0: give --max-restarts 3, say")


def _tell_misplaced(namespace: argparse.Namespace) -> None:
    """Torchrun hands what stands after the script to the script, and so do we; a hint, as the script may want it."""
    given = (word.partition("=")[0] for word in namespace.training_script_args)
    misplaced = next((word for word in given if word.replace("_", "-") in _MISPLACED), None)
    if misplaced is None or _mentions(namespace.training_script, misplaced.lstrip("-").replace("-", "_")):
        return
    live.say(f"{misplaced} stands after the script and goes to it; options of 'rankscope run' stand before the script")


def _mentions(script: str, name: str) -> bool:
    try:
        return name in Path(script).read_text(encoding="utf-8", errors="replace").replace("-", "_")
    except OSError:
        return True  # a module or a program: it may have the option


def said_by_torch(error: Exception, namespace: argparse.Namespace) -> str:
    """What torch's own launcher refuses, with the option that was meant and what to write."""
    text = str(error)
    if "is not available" in text and namespace.nproc_per_node in _DEVICES:
        return f"--nproc-per-node {namespace.nproc_per_node}: {text.rstrip('.')}; give a number"
    if "does not match: <^[0123]" in text:
        wrong = text.partition(" does not match")[0]
        option = "--redirects" if str(namespace.redirects) == wrong else "--tee"
        return f"{option} {wrong}: {_STREAMS}"
    if namespace.log_dir and (isinstance(error, OSError) or text.startswith("log_dir:")):
        reason = (isinstance(error, OSError) and error.strerror) or "it is a file"
        return f"--log-dir '{namespace.log_dir}' cannot be written: {reason}; give a folder"
    return f"{text} (see 'rankscope run --help')"
