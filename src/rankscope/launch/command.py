"""`rankscope run`: from the command line to the exit code."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.diagnosis.verdict import Verdict
from rankscope.errors import UsageError
from rankscope.held_folders import inside, moved_to
from rankscope.launch import (
    afterwards,
    beforehand,
    comm_debug,
    environment,
    error_file,
    folder,
    limits,
    options,
    program,
    too_early,
)
from rankscope.launch.board import BoardInPlace, open_output
from rankscope.launch.events import CutShort
from rankscope.launch.exit_code import code_for_scheduler
from rankscope.launch.job import Job
from rankscope.launch.nodes import node_key
from rankscope.launch.output import OutputPump
from rankscope.launch.run_state import Policy
from rankscope.launch.sinks import LogFile
from rankscope.launch.stage_teller import StageTeller
from rankscope.launch.status_line import StatusLine
from rankscope.launch.supervisor import Supervisor
from rankscope.launch.verdict_file import print_verdict
from rankscope.private_files import make_held_folder
from rankscope.report import live, progress_words, terminal
from rankscope.report.notices.notifier import Notifier, tell_the_end
from rankscope.report.screen import Screen, open_screen
from rankscope.report.words.languages import language
from rankscope.versions import versions

if TYPE_CHECKING:
    from rankscope.launch.live_page import LivePage


_NO_KEY = (
    "the nodes share no key: what they say to each other is told and stops nothing (give {variable}, --node-key-file "
    "or a shared --run-dir)"
)
_NO_TERMINAL = "--board needs a terminal on standard error: the ranks' output is shown instead"


def launch(arguments: list[str], pages_path: str) -> int:
    """Runs the job and says how it went; `pages_path` is a folder for the ranks' pages."""
    chosen = options.parse(arguments)
    own_environment = dict(os.environ)
    beforehand.run_wanted_checks(chosen)
    beforehand.place_in_slurm(chosen)
    beforehand.check_master(chosen)
    beforehand.place_on_gpus(chosen)
    processes = chosen.torch.nproc_per_node
    told = environment.limit_threads(int(processes) if processes.isdigit() else 2)
    timeout = comm_debug.set_comm_timeout(chosen.comm_timeout_s, probe=chosen.probe)
    config, entry, entry_arguments = options.launch_config(chosen)
    program.name_program(chosen.torch)
    several = socket.gethostname() if config.max_nodes > 1 else None
    run_folder = folder.make_run_folder(chosen.run_dir, chosen.torch.training_script, several)
    too_early.leave_with_verdict(run_folder, chosen.lang)
    key = node_key.find_key(chosen.node_key_file, chosen.run_dir if several else None)
    installed = versions()
    command = ["rankscope", "run", *arguments]
    folder.describe_run(
        run_folder,
        command,
        installed,
        {
            "on_hang": chosen.on_hang,
            "on_nan": chosen.on_nan,
            "on_corrupt": chosen.on_corrupt,
            "stall_after_s": chosen.stall_after_s,
        },
    )
    notifier = Notifier(chosen.notify, str(run_folder.resolve()), own_environment)
    pages = Path(pages_path) if chosen.probe else None
    screen = open_screen()
    if screen is not None:
        live.use(screen)
    script = chosen.torch.training_script
    live.tell(live.Starts(script, config.nproc_per_node, config.max_nodes, str(run_folder)), chosen.lang)
    prepared = [
        beforehand.lacks_py_spy(),
        limits.set_low_memory() if chosen.low_memory else None,
        limits.set_memory_limit(chosen.memory_limit, probe=chosen.probe),
        limits.serialize_imports(chosen.serialize_imports, config.nproc_per_node, pages),
        comm_debug.set_comm_debug(run_folder) if chosen.comm_debug else None,
        timeout,
    ]
    for line in [*prepared, *environment.prepare_environment(pages)]:
        if line is not None:
            live.say(line)
    keep = _stage_log(run_folder)
    if told is not None:
        keep([f"rankscope: {told}"])
        live.say(told if chosen.stages == "on" else "")
    board = _place_for_board(screen, chosen.lang) if chosen.board else None
    pump = _pump(screen, board, run_folder, merge=chosen.merge)
    job = Job(run_folder, pages, tuple(command), installed, pump)
    job.node_key, job.lang = key, chosen.lang
    job.key_is_given = chosen.node_key_file is not None or bool(own_environment.get(node_key.VARIABLE))
    job.may_shrink = config.min_nodes < config.max_nodes
    if several and key is None:
        live.say(language(chosen.lang).label(_NO_KEY, variable=node_key.VARIABLE))
    page = _open_page(job, chosen)
    supervisor = Supervisor(
        job,
        Policy(chosen.on_hang, chosen.on_nan, chosen.on_corrupt, chosen.restart_always, chosen.lang),
        chosen.stall_after_s,
        lambda last: _show(last, job, chosen.json),
        page=chosen.report or page is not None,
        alert=lambda found: notifier.tell(found, "detected"),
        tell=page.tell if page is not None else functools.partial(live.tell, lang=chosen.lang),
    )
    helpers = _helpers(job, chosen, screen, board, StageTeller(job, chosen.stages, keep, live.show, live.say))
    with page or nullcontext():
        code = supervisor.conclude(_launch(config, entry, entry_arguments, chosen, job, supervisor, helpers))
    _hand_on(supervisor.verdict, code, job)
    if supervisor.verdict is not None and supervisor.speaks:
        tell_the_end(supervisor.verdict, notifier, own_environment, pages)
    if supervisor.verdict is not None and chosen.retry_codes:
        return code_for_scheduler(supervisor.verdict, code)
    return code


def _hand_on(verdict: Verdict | None, code: int, job: Job) -> None:
    """To whoever started us, where it asked for it as torchrun's own parents do."""
    target = os.environ.get(error_file.VARIABLE)
    if not target or code == 0 or verdict is None:
        return
    try:
        error_file.write_error_file(target, verdict, code, job.error_files)
    except OSError as error:
        live.say(f"{error_file.VARIABLE}={target} cannot be written: {error.strerror}")


class Helper(Protocol):
    """Works in a thread of its own beside the ranks."""

    def start(self) -> None: ...

    def finish(self) -> None: ...


def _launch(
    config: Any,
    entry: Any,
    arguments: list[str],
    chosen: options.RunOptions,
    job: Job,
    supervisor: Supervisor,
    helpers: Sequence[Helper],
) -> BaseException | None:
    """Runs elastic's agent to its end; returns what kept it from starting the ranks, if anything."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api

    from rankscope.launch.agent import ScopeAgent
    from rankscope.launch.logs import PumpLogs

    if config.max_nodes > 1:
        too_early.leave_at_once()
    if "LOGLEVEL" not in os.environ:
        _quieten_elastic()
    if chosen.torch.logs_specs is None:
        copies = {
            "stdout": list(getattr(config, "duplicate_stdout_filters", None) or ()),
            "stderr": list(getattr(config, "duplicate_stderr_filters", None) or ()),
        }
        config.duplicate_stdout_filters, config.duplicate_stderr_filters = [], []
        config.logs_specs = PumpLogs(
            job.pump, _log_folder(job.folder, chosen), config.logs_specs, _label(config), copies, chosen.prefix
        )
    # The one seam that all supported versions of torch share: launch_agent looks the class up by this name.
    vars(api)["LocalElasticAgent"] = functools.partial(
        ScopeAgent, supervisor=supervisor, job=job, grace_s=chosen.grace_s
    )
    supervisor.start()
    for helper in helpers:
        helper.start()
    try:
        api.launch_agent(config, entry, list(arguments))
    except ChildFailedError as error:
        first = sorted(error.failures.items(), key=lambda failed: failed[1].timestamp)
        job.error_files = {rank: Path(failure.error_file) for rank, failure in first}
        return None  # the supervisor knows more
    except SignalException as stopped:
        supervisor.feed(CutShort(int(stopped.sigval)))
        return None
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  rendezvous and stores raise what they like; it becomes the verdict
        return error
    finally:
        supervisor.finish()
        for helper in helpers:
            helper.finish()
        job.pump.finish(5.0)
    return None


def _helpers(
    job: Job, chosen: options.RunOptions, screen: Screen | None, board: Screen | None, teller: StageTeller
) -> list[Helper]:
    if board is not None:
        return [teller, BoardInPlace(job, board, chosen.torch.training_script)]
    return [teller] if screen is None else [teller, StatusLine(job, screen, teller.where)]


def _place_for_board(screen: Screen | None, lang: str) -> Screen | None:
    if screen is None:
        live.say(language(lang).label(_NO_TERMINAL))
    return screen


def _pump(screen: Screen | None, board: Screen | None, run_folder: Path, *, merge: bool) -> OutputPump:
    """Where a board takes their place on the terminal, the ranks' lines go to a file."""
    if board is None:
        return OutputPump(sys.stdout.buffer, sys.stderr.buffer, merge=merge, screen=screen)
    kept = open_output(run_folder)
    return OutputPump(kept if board.is_terminal(sys.stdout.fileno()) else sys.stdout.buffer, kept, merge=merge)


def _open_page(job: Job, chosen: options.RunOptions) -> LivePage | None:
    if chosen.page is None:
        return None
    # Templates are loaded only where they are needed.
    from rankscope.launch.live_page import LivePage

    return LivePage(job, chosen.torch.training_script, chosen.page)


def _stage_log(run_folder: Path) -> Callable[[list[str]], None]:
    log = LogFile(run_folder / "stages.log")
    return lambda lines: log.write("".join(f"{line}\n" for line in lines).encode())


def _quieten_elastic() -> None:
    """What elastic would log of failures and stops, the verdict says better. Each of its loggers has its own level."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _log_folder(run_folder: Path, chosen: options.RunOptions) -> Path | None:
    """None: the user wants no files of the ranks' output."""
    if chosen.torch.log_dir is None:
        return run_folder / "logs"
    if chosen.torch.log_dir == os.devnull:
        return None
    path = Path(chosen.torch.log_dir) / f"{chosen.torch.rdzv_id}_{uuid.uuid4().hex[:8]}"
    try:
        make_held_folder(path)
        inside(run_folder / "logs").symlink_to(path.resolve(), target_is_directory=True)
    except OSError as error:
        raise UsageError(f"--log-dir '{chosen.torch.log_dir}' cannot be written: {error.strerror}") from error
    return path


def _label(config: Any) -> str:
    """`GPU` where every rank of the only node has one, else `R` with the global rank."""
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "GPU" if config.max_nodes == 1 and 0 < config.nproc_per_node <= devices else "R"


def _show(verdict: Verdict, job: Job, as_json: bool) -> None:
    if as_json:
        print_verdict(verdict, job.folder)
    width = shutil.get_terminal_size((100, 24)).columns
    done = ""
    if verdict.outcome == "ok":
        figures = afterwards.figures(job)
        # A rank that held the others up is a note of its own.
        done = progress_words.done(replace(figures, slow=None) if verdict.stragglers else figures, verdict.language)
    text = terminal.render(
        verdict,
        color=terminal.use_color(sys.stderr),
        width=max(60, min(width, 140)),
        folder=str(moved_to(job.folder) or job.folder),
        done=done,
    )
    sys.stderr.write(text.rstrip("\n") + "\n")
