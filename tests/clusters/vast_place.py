"""A user's machine and a rented one, both folders here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vast_server import KEY

from rankscope.clusters.vast.plan import OfferLimits, VastPlan

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
SSH = """#!/bin/bash
# The machine is a folder here: what would run there runs here.
if [[ -s {folder}/unreachable ]]; then
    left=$(($(<{folder}/unreachable) - 1))
    echo "$left" >{folder}/unreachable
    [[ $left -gt 0 ]] || rm {folder}/unreachable
    echo "ssh: connect to host vast.invalid: Connection refused" >&2
    exit 255
fi
printf '%s\\n' "$*" >>{folder}/ssh-calls
exec bash -c "${{@: -1}}"
"""
PYTHON = """#!/bin/bash
# The trainer: says its arguments, leaves a run folder, and ends as it is told.
[[ $1 != -c && "$1 $2" != "-m pip" ]] || exit 0
echo "trainer: $*"
while [[ $# -gt 0 && $1 != --run-dir ]]; do shift; done
mkdir -p "$2" && echo '{}' >"$2/verdict.json"
[[ ! -f wait ]] || sleep 600
exit "$(<code)"
"""


class Place:
    """A folder with the user's work, a machine, an ssh and a python3 of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, self.machine, self.results = folder / "work", folder / "machine", folder / "results"
        for part in (self.work, folder / "bin", folder / "home/.ssh", self.work / ".git", self.work / "runs"):
            part.mkdir(parents=True)
        (self.work / "train.py").write_text("pass\n")
        (self.work / ".git/large").write_text("history")
        self.tool("ssh", SSH.format(folder=folder))
        self.tool("python3", PYTHON)
        self.key = folder / "home/.ssh/id_ed25519"
        self.key.write_text("private")
        self.key.with_name("id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")

    def tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def plan(self, code: int = 0, **more: object) -> VastPlan:
        (self.work / "code").write_text(str(code))
        command = ("run", "--run-dir", f"{self.machine}/run", "train.py")
        plan = VastPlan(OfferLimits(2), command, "train-abc", self.work, folder=str(self.machine), auto_shutdown=True)
        return replace(plan, **more)  # type: ignore[arg-type]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": str(self.folder / "home"), "VAST_API_KEY": KEY, "PYTHONPATH": SOURCE}
