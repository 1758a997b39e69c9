"""A second user of the machine, while a job of the first one runs: what he tries, and that each of it is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import Rankscope, wait_until

SECOND = "4321"
SCRIPT = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
print("at work", flush=True)
time.sleep(120)
"""
ATTEMPTS = """
import json, os, signal, socket, sys, urllib.error, urllib.request
run, pages, rank, launcher, page = json.loads(sys.argv[1])

def ask(address):
    try:
        return urllib.request.urlopen(address, timeout=5).read()
    except urllib.error.HTTPError as error:
        raise PermissionError(error.code) from error

def connect(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(path)

def write(path):
    with open(path, "r+b") as file:
        file.write(b"x")

def every(folder):
    return [os.path.join(folder, name) for name in os.listdir(folder)]

attempts = {
    "list the run's folder": lambda: os.listdir(run),
    "read the command": lambda: open(f"{run}/run.json").read(),
    "read the ranks' output": lambda: os.listdir(f"{run}/logs"),
    "read the address of the page": lambda: open(f"{run}/page.url").read(),
    "leave a verdict": lambda: open(f"{run}/verdict.json", "w"),
    "lay a link in the run's folder": lambda: os.symlink("/etc/passwd", f"{run}/verdict.json"),
    "put another folder in its place": lambda: os.rename(run, run + ".old"),
    "list the ranks' pages": lambda: os.listdir(pages),
    "remove the ranks' pages": lambda: [os.unlink(path) for path in every(pages)],
    "make a page of his own": lambda: open(f"{pages}/0-1.page", "w"),
    "see the live page without its token": lambda: ask(page),
    "see the live page with a wrong one": lambda: ask(page + "AAAAAAAAAAAAAAAAAAAAAA/"),
    "read a rank's environment": lambda: open(f"/proc/{rank}/environ").read(),
    "read a rank's memory": lambda: open(f"/proc/{rank}/mem", "rb"),
    "read the launcher's environment": lambda: open(f"/proc/{launcher}/environ").read(),
    "list the launcher's files": lambda: os.listdir(f"/proc/{launcher}/fd"),
    "stop a rank": lambda: os.kill(rank, signal.SIGSTOP),
    "end the launcher": lambda: os.kill(launcher, signal.SIGTERM),
}
for number, path in enumerate(json.loads(sys.argv[2])):
    attempts[f"page {number}: read"] = lambda path=path: open(path, "rb")
    attempts[f"page {number}: write"] = lambda path=path: write(path)
    attempts[f"socket {number}"] = lambda path=path: connect(path)
answers = {}
for name, attempt in attempts.items():
    try:
        attempt()
        answers[name] = "let in"
    except PermissionError:
        answers[name] = "refused"
    except OSError as error:
        answers[name] = repr(error)
print(json.dumps(answers))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
def test_what_a_second_user_tries_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="rankscope-second-user-") as folder:
        Path(folder).chmod(0o755)  # only what we make ourselves keeps him out
        rankscope = Rankscope(Path(folder))
        try:
            refused_to_a_second_user(rankscope)
        finally:
            rankscope.end()


def refused_to_a_second_user(rankscope: Rankscope) -> None:
    started = rankscope.start("--page", "0", rankscope.script(SCRIPT))
    started.shows("at work", "http://")
    run, ranks = started.run_dir, started.ranks()
    assert wait_until((run / "page.url").exists, 20.0)
    held = Path(f"/proc/{ranks[0]}/environ").read_bytes().split(b"\0")
    pages = next(Path(word.partition(b"=")[2].decode()) for word in held if word.startswith(b"RANKSCOPE_PAGES="))
    address = "/".join((run / "page.url").read_text().split("/")[:3]) + "/"
    known = json.dumps([str(run), str(pages), ranks[0], started.process.pid, address])
    files = json.dumps([str(path) for path in pages.iterdir()])
    second = ["setpriv", "--reuid", SECOND, "--regid", SECOND, "--clear-groups"]
    command = [*second, sys.executable, "-I", "-c", ATTEMPTS, known, files]
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert tried.returncode == 0, tried.stderr
    answers = json.loads(tried.stdout)
    assert len(answers) > 20
    assert {name: answer for name, answer in answers.items() if answer != "refused"} == {}
    assert started.process.poll() is None
