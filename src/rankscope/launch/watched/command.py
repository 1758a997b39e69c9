"""`rankscope watch -- COMMAND`: from the command line to the exit code."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

from rankscope.diagnosis.facts.run import CommandFailed
from rankscope.diagnosis.verdict import Verdict
from rankscope.held_folders import moved_to
from rankscope.launch import beforehand, environment, folder
from rankscope.launch.output import OutputPump
from rankscope.launch.run_state import Policy, Stages
from rankscope.launch.sinks import LogFile
from rankscope.launch.stage_teller import StageTeller
from rankscope.launch.supervisor import Supervisor
from rankscope.launch.verdict_file import print_verdict
from rankscope.launch.watched import options
from rankscope.launch.watched.agent import CommandAgent
from rankscope.launch.watched.ends import Ends
from rankscope.launch.watched.job import WatchedJob
from rankscope.launch.watched.ranks import Finder
from rankscope.report import live, terminal
from rankscope.report.notices.notifier import Notifier, tell_the_end
from rankscope.report.words.languages import language
from rankscope.versions import versions

_NOBODY = "no rank was seen: nothing that this command started has joined torch.distributed"


def watch(arguments: list[str], pages_path: str) -> int:
    """Runs the command and says how its ranks fared; `pages_path` is a folder for their pages."""
    chosen = options.parse(arguments)
    own_environment = dict(os.environ)
    run_folder = folder.make_run_folder(chosen.run_dir, chosen.command[0])
    installed = versions()
    command = ["rankscope", "watch", *arguments]
    settings: dict[str, object] = {"on_hang": chosen.on_hang, "on_nan": chosen.on_nan, "on_corrupt": chosen.on_corrupt}
    folder.describe_run(run_folder, command, installed, {**settings, "stall_after_s": chosen.stall_after_s})
    notifier = Notifier(chosen.notify, str(run_folder.resolve()), own_environment)
    pages = Path(pages_path)
    for line in [beforehand.lacks_py_spy(), *environment.prepare_environment(pages)]:
        live.say(line or "")
    ends = Ends()
    pump = OutputPump(sys.stdout.buffer, sys.stderr.buffer)  # of which the command makes no use: its output is its own
    job = WatchedJob(run_folder, pages, tuple(command), installed, pump, ends)
    job.lang = chosen.lang
    policy = Policy(chosen.on_hang, chosen.on_nan, chosen.on_corrupt, lang=chosen.lang)
    supervisor = Supervisor(
        job,
        policy,
        chosen.stall_after_s,
        lambda last: _show(last, run_folder, chosen.json),
        alert=lambda found: notifier.tell(found, "detected"),
        tell=functools.partial(live.tell, lang=chosen.lang),
    )
    agent = CommandAgent(job, supervisor, ends, Finder(pages), chosen.grace_s)
    teller = _stages(job, chosen.stages, run_folder)
    supervisor.start()
    teller.start()
    try:
        code = agent.run(chosen.command)
    finally:
        supervisor.finish()
        teller.finish()
        pump.finish(1.0)
    code = _conclude(supervisor, agent, job, code)
    if supervisor.verdict is not None:
        tell_the_end(supervisor.verdict, notifier, own_environment, pages)
    return code


def _conclude(supervisor: Supervisor, agent: CommandAgent, job: WatchedJob, code: int) -> int:
    if not agent.saw_ranks:
        if not agent.stopped:
            live.say(language(job.lang).label(_NOBODY))
        return code
    if code and not agent.stopped and all(end.code == 0 for end in job.ends()):
        supervisor.note(CommandFailed(code))
    judged = supervisor.conclude(None)
    return judged if agent.stopped else code


def _stages(job: WatchedJob, mode: Stages, run_folder: Path) -> StageTeller:
    log = LogFile(run_folder / "stages.log")

    def keep(lines: list[str]) -> None:
        log.write("".join(f"{line}\n" for line in lines).encode())

    return StageTeller(job, mode, keep, live.show, live.say)


def _show(verdict: Verdict, run_folder: Path, as_json: bool) -> None:
    if as_json:
        print_verdict(verdict, run_folder)
    if verdict.outcome != "ok" or verdict.notes:
        width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))
        color = terminal.use_color(sys.stderr)
        text = terminal.render(verdict, color=color, width=width, folder=str(moved_to(run_folder) or run_folder))
        sys.stderr.write(text.rstrip("\n") + "\n")
