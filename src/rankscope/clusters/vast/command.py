"""`rankscope launch vast`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import math
import os
import re
import secrets
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from rankscope.clusters.vast.plan import FOLDER, IMAGE, OfferLimits, VastPlan, offer_query
from rankscope.clusters.vast.scripts import job_script, onstart
from rankscope.clusters.what_runs import refuse_own_options, refuse_without_script, script_of
from rankscope.errors import UsageError
from rankscope.spelling import mended
from rankscope.terminal_text import harmless
from rankscope.verbs import brought_verbs, load_verb

EPILOG = """\
The key is taken from VAST_API_KEY or from the file that `vastai set api-key` wrote. The work folder is sent over ssh
without .git, environments and earlier runs, and rankscope itself with it; the output of the job is shown here as it
comes, and its exit code is that of this command. With --auto-shutdown the machine is destroyed at the end, on failure
too, and destroys itself if this command loses contact; without it the machine is kept, and its price is said.

examples:
  rankscope launch vast --config my.yaml --num-gpus 2 --gpu H100_SXM --max-price 6 --auto-shutdown
  rankscope launch vast --num-gpus 4 --auto-shutdown -- train.py --lr 1e-4
  rankscope launch vast --config my.yaml --num-gpus 2 --dry-run
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope launch vast --help')")


def launch_vast(arguments: list[str]) -> int:
    """The verb: the exit code is the job's."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    refuse_own_options(chosen.command, parser)
    plan = _plan(chosen)
    from rankscope.clusters.vast.remote import environment_file

    brought = environment_file(chosen.env, os.environ)
    if chosen.dry_run:
        sys.stdout.write(dry_run(plan))
        return 0
    from rankscope.clusters.vast.account import Account
    from rankscope.clusters.vast.remote import public_key
    from rankscope.clusters.vast.session import Wanted, launch

    if shutil.which("ssh") is None:
        raise UsageError("ssh is not on the path: install openssh-client")
    account = Account()
    key, identity = public_key(chosen.ssh_key)
    results = chosen.run_dir or Path("runs") / f"vast-{plan.name}"
    if results.exists() and any(results.iterdir()):
        raise UsageError(f"--run-dir {results} is not empty: give another one")
    wanted = Wanted(results, key, identity, brought, tuple(chosen.fetch))
    try:
        return launch(plan, wanted, account, _say)
    except KeyboardInterrupt:
        _say("stopped")
        return 130


def dry_run(plan: VastPlan) -> str:
    """What would be asked of Vast and what would run there, to the letter."""
    parts = [f"offer query, the cheapest first:\n  {offer_query(plan.offer)}\n"]
    parts.append(f"machine:\n  image {plan.image}, disk {plan.offer.disk_gb:g} GB, label rankscope-{plan.name}\n")
    start = onstart(plan)
    if start is not None:
        parts.append(f"at its start (gives the machine back when the job is over):\n{start}")
    else:
        parts.append("it is kept after the end; --auto-shutdown gives it back\n")
    parts.append(f"the job, {plan.folder}/job.sh:\n{job_script(plan)}")
    return "\n".join(parts)


def _plan(chosen: argparse.Namespace) -> VastPlan:
    command = tuple(chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command)
    workdir: Path = chosen.workdir
    if not workdir.is_dir():
        raise UsageError(f"--workdir {workdir} is no folder")
    config = _inside(chosen.config, workdir, "--config") if chosen.config is not None else None
    if not command and config is None:
        raise UsageError("nothing to run: give --config FILE for rankscope train, or a script after --")
    if not command:
        _check_config(chosen.config)
    if chosen.num_gpus is None:
        chosen.num_gpus, why = _gpus_wanted(command)
        _say(f"{chosen.num_gpus} GPUs{why}; --num-gpus changes that")
    _check_numbers(chosen)
    _check_command(command, workdir, chosen.num_gpus)
    if not chosen.remote_folder.startswith("/"):
        raise UsageError(f"--remote-folder {chosen.remote_folder}: give a whole path of that machine, as {FOLDER}")
    for path in chosen.fetch:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UsageError(f"--fetch {path}: give a path inside of the work folder")
    if any(word.startswith(("--run-dir", "--run_dir")) for word in command):
        raise UsageError("--run-dir stands before the --: it is the folder here into which the results come")
    named = next((word for word in command if word.endswith(".py")), config or "train")
    stem = re.sub(r"[^a-z0-9-]+", "-", (chosen.name or Path(named).stem).lower()).strip("-")[:40] or "train"
    return VastPlan(
        offer=OfferLimits(
            num_gpus=chosen.num_gpus,
            gpu=chosen.gpu,
            max_price=chosen.max_price,
            min_reliability=chosen.min_reliability,
            disk_gb=chosen.disk,
            more=tuple(chosen.offer),
        ),
        command=_command(command, config, chosen.num_gpus, f"{chosen.remote_folder}/run", not chosen.no_comm_debug),
        # The mark tells the machines of two runs apart.
        name=f"{stem}-{secrets.token_hex(3)}",
        workdir=workdir,
        image=chosen.image,
        setup=chosen.setup,
        auto_shutdown=chosen.auto_shutdown,
        folder=chosen.remote_folder,
        start_limit_s=chosen.start_limit,
    )


def _command(
    given: tuple[str, ...], config: str | None, gpus: int, run_folder: str, comm_debug: bool
) -> tuple[str, ...]:
    ranks = () if _ranks_option(given) else ("--nproc-per-node", str(gpus))
    with_config = () if config is None else ("--config", config)
    debug = ("--comm-debug",) if comm_debug else ()
    if given:
        return ("run", *ranks, *debug, "--run-dir", run_folder, *given, *with_config)
    return ("train", *with_config, *ranks, "--run-dir", run_folder, *(("--", *debug) if debug else ()))


def _gpus_wanted(command: tuple[str, ...]) -> tuple[int, str]:
    """As many as the command starts ranks; else two, the least that a job of several ranks needs."""
    option = _ranks_option(command)
    value = (
        option.partition("=")[2]
        if "=" in option
        else next(iter(command[command.index(option) + 1 :]), "")
        if option
        else ""
    )
    return (int(value), f", as --nproc-per-node {value} says") if value.isdigit() else (2, "")


def _check_command(command: tuple[str, ...], workdir: Path, gpus: int) -> None:
    """What would fail there, on a machine that is paid for."""
    refuse_without_script(command)
    script = script_of(command)
    if script is not None and not Path(script).is_absolute() and not (workdir / script).is_file():
        raise UsageError(f"there is no '{script}' in --workdir {workdir}, which is what is sent")
    ranks, _ = _gpus_wanted(command)
    if _ranks_option(command) and ranks > gpus:
        raise UsageError(f"--nproc-per-node {ranks} and --num-gpus {gpus}: each rank needs a GPU; leave one out")


def _check_config(path: Path) -> None:
    """As `rankscope train` there will read it. Raises its UsageError."""
    brought = brought_verbs().get("train")
    if brought is None or (path.suffix in (".yaml", ".yml") and importlib.util.find_spec("yaml") is None):
        return  # it is read there alone
    with contextlib.redirect_stdout(io.StringIO()):
        load_verb(brought).command(["--config", str(path), "--show-config"])


def _ranks_option(command: tuple[str, ...]) -> str:
    return next((word for word in command if word.replace("_", "-").startswith("--nproc-per-node")), "")


def _inside(path: Path, workdir: Path, option: str) -> str:
    if not path.is_file():
        raise UsageError(f"{option} {path}: there is no such file (current folder: {os.getcwd()})")
    try:
        return str(path.resolve().relative_to(workdir.resolve()))
    except ValueError:
        raise UsageError(f"{option} {path} is not inside of --workdir {workdir}, which is what is sent") from None


def _check_numbers(chosen: argparse.Namespace) -> None:
    if chosen.num_gpus < 1:
        raise UsageError(f"--num-gpus {chosen.num_gpus}: give 1 or more")
    if not 0 <= chosen.min_reliability <= 1:
        raise UsageError(f"--min-reliability {chosen.min_reliability:g}: give a number from 0 to 1, as 0.98")
    for option in ("max_price", "disk", "start_limit"):
        value = getattr(chosen, option)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{option.replace('_', '-')} {value:g}: give a number above 0")
    for option, text in (
        ("--gpu", chosen.gpu),
        ("--image", chosen.image),
        *(("--fetch", path) for path in chosen.fetch),
    ):
        if text is not None and not text.strip():
            raise UsageError(f"{option} is empty (a variable that is not set?): write it out, or leave it out")
    for condition in chosen.offer:
        if not re.fullmatch(r"\w+\s*(<=|>=|!=|==|=|<|>|:)\s*\S+", condition):
            raise UsageError(f"--offer '{condition}': write a condition of Vast's search, as cuda_vers>=12.8")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rankscope launch vast",
        usage="rankscope launch vast --config FILE [--num-gpus N] [options] "
        "[-- [options of rankscope run] SCRIPT [script arguments]]",
        description="Rent a machine at Vast, run there, bring logs and run folder back.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="of rankscope train, or of the script after --")
    parser.add_argument(
        "--num-gpus",
        type=int,
        metavar="N",
        help="of the machine, one rank each (default: what --nproc-per-node says, or 2)",
    )
    offer = parser.add_argument_group("which machine")
    offer.add_argument("--gpu", metavar="KIND", help="as Vast names it: RTX_4090, H100_SXM")
    offer.add_argument("--max-price", type=float, metavar="DOLLARS", help="an hour, for the whole machine")
    offer.add_argument("--min-reliability", type=float, default=0.98, help="0 to 1 (default: 0.98)")
    offer.add_argument("--disk", type=float, default=64.0, metavar="GB", help="default: 64")
    offer.add_argument(
        "--offer", action="append", default=[], metavar="CONDITION", help="a further one, as 'cuda_vers>=12.8'"
    )
    offer.add_argument("--image", default=IMAGE, help=f"with Python and torch (default: {IMAGE})")
    job = parser.add_argument_group("what runs there")
    job.add_argument("--workdir", type=Path, default=Path(), help="the folder that is sent (default: this one)")
    job.add_argument("--setup", default="", metavar="LINES", help="shell lines before the job: pip install -r ...")
    job.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable of here, as WANDB_API_KEY")
    job.add_argument("--name", help="of the run (default: the script's name)")
    job.add_argument("--remote-folder", default=FOLDER, metavar="FOLDER", help=f"there (default: {FOLDER})")
    job.add_argument(
        "--no-comm-debug", action="store_true", help="without NCCL_DEBUG=INFO and what else --comm-debug of run sets"
    )
    job.add_argument("--start-limit", type=float, default=1800.0, metavar="SECONDS", help="default: 1800")
    after = parser.add_argument_group("afterwards")
    after.add_argument("--run-dir", type=Path, metavar="DIR", help="for log and run folder (default: runs/vast-NAME)")
    after.add_argument("--fetch", action="append", default=[], metavar="PATH", help="also this of the work folder")
    after.add_argument("--auto-shutdown", action="store_true", help="destroy the machine at the end, on failure too")
    after.add_argument("--dry-run", action="store_true", help="print the offer query and the script, rent nothing")
    parser.add_argument("--ssh-key", type=Path, metavar="FILE", help="private key (default: the first in ~/.ssh)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _say(text: str) -> None:
    print(harmless(f"rankscope: {text}"), file=sys.stderr, flush=True)
