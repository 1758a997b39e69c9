"""`rankscope launch slurm`: the batch script of a run, with requeue and a signal before the time is up."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankscope.clusters.what_runs import refuse_missing_script, refuse_other_numbers, refuse_own_options
from rankscope.errors import RankscopeError, UsageError
from rankscope.spelling import mended


@dataclass(frozen=True, slots=True)
class SlurmJob:
    command: tuple[str, ...]
    """What stands after `rankscope run`."""
    nodes: int = 1
    gpus_per_node: int | None = None
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    name: str = "train"
    warn_s: int = 120
    """Seconds before the end of the time limit at which the ranks are asked to save and stop."""
    requeue: bool = True
    extra: tuple[str, ...] = ()
    """Further `#SBATCH` options."""
    python: str = "python3"


_MOST_TIMES = 3
"""That a job is put back because of its host: more bad hosts than that are something else."""
_KEEP_RETRY = 'echo "$RANKSCOPE_RETRY $RANKSCOPE_HOSTS" >"$RANKSCOPE_RETRY_FILE"'
_ELSEWHERE = """
# Where the verdict says `elsewhere` (a GPU or a link that is broken), the job runs again on other hosts.
retry=
hosts=
if [[ -s $RANKSCOPE_RETRY_FILE ]]; then read -r retry hosts <"$RANKSCOPE_RETRY_FILE"; fi
rm -f "$RANKSCOPE_RETRY_FILE"
exclude() {
    local known host tried
    known=$(scontrol show job --oneliner "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\\([^ ]*\\).*/\\1/p')
    [[ $known == "(null)" ]] && known=
    for host in ${1//,/ }; do known=${known:+$known,}${host%%.*}; done
    # Slurm takes the list only of a job that is back in the queue; and it sends TERM to all of this one's processes.
    for tried in 1 2 3 4 5; do
        (trap '' TERM; scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$known") && return
        sleep 1
    done
}
if [[ -z $again && $code -ne 0 && $retry == elsewhere && -n $hosts && ${SLURM_RESTART_COUNT:-0} -lt MOST ]]; then
    echo "rankscope: the job goes back into the queue, without $hosts"
    scontrol requeue "$SLURM_JOB_ID"
    exclude "$hosts"
fi
""".replace("MOST", str(_MOST_TIMES))
_KEY = """\
# What the launchers say to each other is sealed with a key, which srun brings to the nodes.
export RANKSCOPE_KEY="${RANKSCOPE_KEY:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}"

"""


def script(job: SlurmJob) -> str:
    """The whole batch script."""
    options = [f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1", "--open-mode=append"]
    options.append("--output=slurm-%j.out")
    options.append("--requeue" if job.requeue else "--no-requeue")
    options.append(f"--signal=B:USR1@{job.warn_s}")
    if job.gpus_per_node is not None:
        options.append(f"--gpus-per-node={job.gpus_per_node}")
    for name, value in (("time", job.time_limit), ("partition", job.partition), ("account", job.account)):
        if value is not None:
            options.append(f"--{name}={value}")
    options += job.extra
    head = "\n".join(f"#SBATCH {option}" for option in options)
    told = ["--notify", _KEEP_RETRY] if job.requeue else []
    run = shlex.join([job.python, "-m", "rankscope", "run", *told, *job.command])
    keep = "# Here the verdict says whether the job may pass elsewhere.\n" if job.requeue else ""
    keep += "export RANKSCOPE_RETRY_FILE=$PWD/.rankscope-retry-$SLURM_JOB_ID\n\n" if job.requeue else ""
    again = 'scontrol requeue "$SLURM_JOB_ID"' if job.requeue else 'echo "rankscope: the time is up; not requeued"'
    key = _KEY if job.nodes > 1 else ""
    return f"""#!/bin/bash
{head}

{key}{keep}# Before the time limit Slurm sends USR1 to this script only. The launchers then get TERM: they take
# a last look, ask the ranks to end with TERM, on which a program saves its state, and the job goes back into the queue.
time_is_up=
job=
ask_to_stop() {{
    echo "rankscope: the time is nearly up; asking the ranks to save and stop"
    kill -TERM "$job"
}}
trap 'time_is_up=1; [[ -z $job ]] || ask_to_stop' USR1
trap : TERM # the launchers get it too, and this script outlives them

srun --ntasks-per-node=1 --kill-on-bad-exit=0 {run} &
job=$!
[[ -z $time_is_up ]] || ask_to_stop # it came before the number of the process was known
wait "$job"
code=$?
while kill -0 "$job" 2>/dev/null; do
    wait "$job"
    code=$?
done

# A preempted job that ends within its grace is over for Slurm, unless it goes back into the queue by itself.
preempted() {{ scontrol show job --oneliner "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'; }}
again=
if [[ $code -ne 0 ]] && {{ [[ -n $time_is_up ]] || preempted; }}; then
    again=1
    {again}
fi
{_ELSEWHERE if job.requeue else ""}exit "$code"
"""


_LONGEST_WARNING_S = 65535
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|infinite|unlimited", re.IGNORECASE)


def _refuse_options(chosen: argparse.Namespace) -> None:
    """What sbatch would refuse, or take for something else."""
    if chosen.gpus_per_node is not None and chosen.gpus_per_node < 1:
        raise UsageError(f"--gpus-per-node {chosen.gpus_per_node}: give 1 or more, or leave it out")
    if chosen.time is not None and not _TIME.fullmatch(chosen.time):
        raise UsageError(f"--time {chosen.time}: write it as Slurm does, as 2-00:00:00 for two days or 90 for minutes")
    for option in ("name", "partition", "account"):
        value = getattr(chosen, option)
        if value is not None and not value.strip():
            raise UsageError(f"--{option} is empty: give a name, or leave it out")
        if value is not None and len(value.split()) != 1:
            raise UsageError(
                f"--{option} '{value}' has spaces, at which Slurm would cut it: write {'-'.join(value.split())}"
            )
    if chosen.warn > _LONGEST_WARNING_S:
        raise UsageError(f"--warn {chosen.warn}: Slurm warns {_LONGEST_WARNING_S} seconds before the end at most")
    for option in chosen.sbatch:
        if not option.strip() or len(option.splitlines()) > 1:
            raise UsageError("--sbatch is empty or several lines: give an option of sbatch, as exclusive or mem=64G")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope launch slurm --help')")


def launch_slurm(arguments: list[str]) -> int:
    """The verb: writes the script and hands it to sbatch; with --dry-run it is printed."""
    parser = _Parser(
        prog="rankscope launch slurm",
        usage="rankscope launch slurm [options] -- [options of rankscope run] SCRIPT [script arguments]",
        description="Write the batch script of a run and submit it.",
    )
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int)
    parser.add_argument("--time", metavar="LIMIT", help="as Slurm writes it: 2-00:00:00")
    parser.add_argument("--partition")
    parser.add_argument("--account")
    parser.add_argument("--name", help="of the job (default: the script's name)")
    parser.add_argument("--warn", type=int, default=120, metavar="SECONDS", help="before the end (default: 120)")
    parser.add_argument("--no-requeue", action="store_true", help="do not start again when the time is up")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="a further option, as exclusive"
    )
    parser.add_argument("--output", type=Path, help="also keep the script there")
    parser.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="what to run: options of rankscope run, and the script"
    )
    chosen = parser.parse_args(arguments)
    refuse_own_options(chosen.command, parser)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        raise UsageError("nothing to run: write rankscope launch slurm --nodes 2 -- --nproc-per-node 8 train.py")
    if chosen.nodes < 1 or chosen.warn < 1:
        raise UsageError("--nodes and --warn must be at least 1")
    _refuse_options(chosen)
    refuse_missing_script(command)
    refuse_other_numbers(command, nodes=chosen.nodes, gpus=chosen.gpus_per_node)
    named = next((word for word in command if word.endswith(".py")), "train")
    text = script(
        SlurmJob(
            command=tuple(command),
            nodes=chosen.nodes,
            gpus_per_node=chosen.gpus_per_node,
            time_limit=chosen.time,
            partition=chosen.partition,
            account=chosen.account,
            name=chosen.name or Path(named).stem,
            warn_s=chosen.warn,
            requeue=not chosen.no_requeue,
            extra=tuple(f"--{option.lstrip('-')}" for option in chosen.sbatch),
            python=sys.executable,
        )
    )
    if chosen.output is not None:
        try:
            chosen.output.write_text(text)
        except OSError as error:
            raise UsageError(f"--output {chosen.output} cannot be written: {error.strerror}") from error
    if chosen.dry_run:
        sys.stdout.write(text)
        return 0
    if shutil.which("sbatch") is None:
        raise UsageError("sbatch is not on the path: start this on a login node of the cluster, or use --dry-run")
    ended = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RankscopeError(f"sbatch refused the job: {' '.join(ended.stderr.split())}")
    print(f"submitted as job {ended.stdout.strip()}; its output goes to slurm-{ended.stdout.strip().split(';')[0]}.out")
    return 0
