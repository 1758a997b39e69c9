"""The two scripts that run on the rented machine: the job with its exit code, and the watch that gives it back."""

from __future__ import annotations

import re
import shlex

from rankscope.clusters.vast.package import own_distribution
from rankscope.clusters.vast.plan import OWN, VastPlan

_JOB = """#!/bin/bash
# Runs the job in the folder work. Its exit code is that of the job, and is also kept in the file exit_code.
folder={quoted}
# What is started over ssh does not get the path that the image sets.
for place in /opt/conda/bin /venv/main/bin; do
    [[ ! -x $place/python3 ]] || PATH=$place:$PATH
done
cd "$folder/work" || exit 1
# The very package that launched this, sent along: no index needs to have it.
export PYTHONPATH="$folder/{own}${{PYTHONPATH:+:$PYTHONPATH}}"

finish() {{
    # Written beside and renamed: whoever finds the file finds the whole number in it.
    echo "$1" >"$folder/exit_code.new" && mv "$folder/exit_code.new" "$folder/exit_code"
    exit "$1"
}}

if [[ -f $folder/environment ]]; then
    set -a
    . "$folder/environment"
    set +a
fi

(
    set -e
{setup}
)
code=$?
if [[ $code -ne 0 ]]; then
    echo "rankscope: the set-up failed with exit code $code; the job was not started"
    finish "$code"
fi

{run}
code=$?
if [[ $code -eq 0 ]]; then
    echo "rankscope: the job has completed successfully"
else
    echo "rankscope: the job failed with exit code $code"
fi
finish "$code"
"""

# The machine's own key, which Vast puts into its environment, may do nothing but stop and destroy this machine.
_WATCH = """#!/bin/bash
# Gives this machine back when its job has ended or never started, also when whoever rented it has lost contact.
folder={quoted}
begun=$SECONDS
ended=
while sleep {period:g}; do
    if [[ ! -f $folder/pid ]]; then
        [[ $((SECONDS - begun)) -gt {start:d} ]] || continue
        break
    fi
    if [[ ! -f $folder/exit_code ]] && kill -0 "$(<"$folder/pid")" 2>/dev/null; then
        continue
    fi
    ended=${{ended:-$SECONDS}}
    [[ -f $folder/fetched || $((SECONDS - ended)) -gt {fetch:d} ]] || continue
    break
done
until python3 - <<'END'; do sleep {retry:g}; done
import os, urllib.request

own = dict(os.environ)
if "CONTAINER_API_KEY" not in own:
    own.update(word.split("=", 1) for word in open("/proc/1/environ").read().split("\\0") if "=" in word)
url = own.get("VAST_URL", "https://console.vast.ai") + "/api/v0/instances/" + own["CONTAINER_ID"] + "/"
key = {{"Authorization": "Bearer " + own["CONTAINER_API_KEY"]}}
urllib.request.urlopen(urllib.request.Request(url, method="DELETE", headers=key), timeout=60).read()
END
"""
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
ONSTART_LIMIT = 4048
"""Characters that Vast takes."""


def job_script(plan: VastPlan) -> str:
    """Started over ssh once the work folder is there."""
    needed = f"python3 -m pip install --quiet {shlex.join(needed_packages(plan.command[0]))}"
    setup = "\n".join(f"    {line}" for line in [needed, *plan.setup.splitlines()])
    run = shlex.join(["python3", "-m", "rankscope", *plan.command])
    return _JOB.format(quoted=shlex.quote(plan.folder), own=OWN, setup=setup, run=run)


def needed_packages(verb: str) -> list[str]:
    """What the package that is sent depends on, with its versions; torch comes with the image."""
    found = []
    for line in own_distribution().requires or []:
        name, _, condition = line.partition(";")
        extra = _EXTRA.search(condition)
        if extra is None or (extra[1] == "train" and verb == "train"):
            left = _EXTRA.sub("", condition).strip().removesuffix("and").strip().removeprefix("and").strip()
            found.append(f"{name.strip()}; {left}" if left else name.strip())
    return found


def watch_script(plan: VastPlan, *, period_s: float = 15.0, retry_s: float = 30.0) -> str:
    """The machine's onstart, with --auto-shutdown."""
    return _WATCH.format(
        quoted=shlex.quote(plan.folder),
        period=period_s,
        retry=retry_s,
        start=int(plan.start_limit_s),
        fetch=int(plan.fetch_limit_s),
    )


def onstart(plan: VastPlan) -> str | None:
    """What Vast runs when the machine starts: it must return at once."""
    if not plan.auto_shutdown:
        return None
    file = f"{plan.folder}/watch.sh"
    return (
        f"mkdir -p {shlex.quote(plan.folder)}\n"
        f"cat >{shlex.quote(file)} <<'END-OF-WATCH'\n{watch_script(plan)}END-OF-WATCH\n"
        f"setsid nohup bash {shlex.quote(file)} >/dev/null 2>&1 </dev/null &\n"
    )
