"""Starts the probe in a process of the job, before the user's program."""

from __future__ import annotations

import os
import resource

from rankscope.probe import (
    comm_timeout,
    exits,
    given_work,
    import_lock,
    kept_files,
    listener,
    signals,
    spawned,
    status_watch,
    trackers,
)
from rankscope.probe.calls import CallRecorder
from rankscope.probe.constructions import Constructions
from rankscope.probe.first_step import FirstStep
from rankscope.probe.hooks import TorchHooks
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import Page, own_pages
from rankscope.probe.sites import Sites, program
from rankscope.probe.stage_calls import watch_calls
from rankscope.probe.stages import StageBook

FOLDER_VARIABLE = "RANKSCOPE_PAGES"
"""Where pages and sockets lie; set by the launcher. Without it the probe does nothing."""
LAUNCHER_VARIABLE = "RANKSCOPE_LAUNCHER_PID"

BOOKS: list[StageBook] = []
"""The stages of this process; empty where no launcher watches it."""


def start() -> None:
    """Every Python process of a job gets a page: a spawned child may be a rank itself."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or own_pages or not os.path.isdir(folder):
        return
    page = Page(_page_path(folder), _rank())
    own_pages.append(page)
    page.stage("started")
    if program():
        page.program(program())
    signals.allow_tracing(page)
    signals.die_with_launcher(os.environ.get(LAUNCHER_VARIABLE, ""))
    signals.write_stacks(page)
    signals.keep_forever(page.map)
    kept_files.watch_closing(page.error)
    calls = CallRecorder(page)
    book = StageBook(page, Sites(page))  # a stage begins before the library's function that its calls go through
    BOOKS.append(book)
    book.mark("Script started", "started", None)
    status_watch.remember()
    imports = ImportWatch(page.error)
    constructions = Constructions(book)
    first = FirstStep(book, calls, constructions)
    TorchHooks(page, calls, first, lambda: _joining(page, folder)).watch(imports)
    watch_calls(book, imports)
    spawned.watch(page, imports)
    given_work.watch(page, imports)
    trackers.watch(page, imports)
    comm_timeout.watch(imports)
    constructions.watch(imports)
    first.watch(imports)
    _limit_memory(page)
    lock = os.environ.get(import_lock.VARIABLE)
    if lock:
        imports.lock(import_lock.HEAVY, import_lock.ImportLock(lock, book, page.rank).around)
    imports.install()
    exits.note(page, calls.sites(), book, imports)
    # A forked child shares the page's memory; it must not write into its parent's story.
    os.register_at_fork(after_in_child=page.detach)


def _limit_memory(page: Page) -> None:
    limit = os.environ.get("RANKSCOPE_MEMORY_LIMIT", "")
    if not limit.isdigit():
        return
    try:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = int(limit) if most == resource.RLIM_INFINITY else min(int(limit), most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    except (ValueError, OSError) as error:
        page.error(f"the memory limit could not be set: {error}")


def _joining(page: Page, folder: str) -> None:
    """The process is about to join a process group: it is a rank, even if it was forked by one."""
    if page.detached:
        page.attach(_page_path(folder))
        signals.write_stacks(page)
        signals.keep_forever(page.map)
    if program():
        page.program(program())  # by now Python has found it, if the launcher had not
    listener.start(page)


def _page_path(folder: str) -> str:
    return os.path.join(folder, f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{os.getpid()}.page")


def _rank() -> int:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else -1
