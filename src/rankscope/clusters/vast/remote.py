"""The rented machine over ssh: files there, the job started and followed, results back."""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankscope.errors import RankscopeError, UsageError

_LEFT_OUT = frozenset({".git", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "runs"})
_NO_CONTACT = 255
"""ssh's own exit code where it could not connect."""


class NoContact(RankscopeError):
    """The machine cannot be reached over ssh; says why."""


@dataclass(frozen=True, slots=True)
class Remote:
    host: str
    port: int
    folder: str
    identity: Path | None = None

    def call(self, line: str, given: bytes = b"", limit_s: float = 120.0) -> bytes:
        """Runs a shell line there. Raises NoContact where ssh fails, RankscopeError where the line does."""
        try:
            ended = subprocess.run(self._ssh(line), input=given, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise NoContact(f"{self.host}:{self.port} did not answer within {limit_s:g} s") from None
        self._judge(line, ended.returncode, ended.stderr)
        return ended.stdout

    def send_tree(self, folder: Path, name: str = "work") -> int:
        """A folder under that name, without version control, environments and earlier runs. Returns the bytes."""
        with tempfile.TemporaryFile() as errors:
            sending = subprocess.Popen(
                self._ssh(f"mkdir -p {self._path(name)} && tar -xzf - -C {self._path(name)}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            assert sending.stdin is not None
            counted = _Counted(sending.stdin)
            with suppress(BrokenPipeError):  # its exit code and its errors tell
                with tarfile.open(fileobj=counted, mode="w|gz") as archive:  # type: ignore[call-overload]
                    archive.add(folder, arcname=".", filter=_kept)
                sending.stdin.close()
            code = sending.wait()
            errors.seek(0)
            self._judge("unpack the files", code, errors.read())
        return counted.bytes

    def send_file(self, name: str, content: bytes, mode: str = "600") -> None:
        path = self._path(name)
        self.call(f"mkdir -p {shlex.quote(self.folder)} && umask 077 && cat >{path} && chmod {mode} {path}", content)

    def start(self) -> None:
        """Detached from this connection: it goes on when we lose contact."""
        log, script, pid = self._path("job.log"), self._path("job.sh"), self._path("pid")
        self.call(
            f"rm -f {self._path('exit_code')} {self._path('fetched')} && "
            f"{{ setsid nohup bash {script} >{log} 2>&1 </dev/null & echo $! >{pid}; }}"
        )

    def follow(self, show: Callable[[bytes], None], *, poll_s: float, lost_limit_s: float) -> int:
        """Shows the job's output as it comes and returns its exit code.

        Raises NoContact when the machine has not answered for `lost_limit_s`, RankscopeError when the job is gone
        without an exit code.
        """
        seen = 0
        answered = time.monotonic()
        log, code, pid = self._path("job.log"), self._path("exit_code"), self._path("pid")
        # The state is read before the output: what was written before the end is not missed.
        question = (
            f"state=; [ ! -f {code} ] || state=$(cat {code}); "
            f'[ -n "$state" ] || kill -0 "$(cat {pid})" 2>/dev/null || [ -f {code} ] || state=gone; '
            f'echo "$state"; tail -c +$(({{seen}} + 1)) {log}'
        )
        while True:
            try:
                answer = self.call(question.replace("{seen}", str(seen)))
            except NoContact:
                if time.monotonic() - answered > lost_limit_s:
                    raise
                time.sleep(poll_s)
                continue
            answered = time.monotonic()
            state, _, news = answer.partition(b"\n")
            if news:
                show(news)
                seen += len(news)
            if state == b"gone":
                raise RankscopeError("the job has gone without an exit code: it was killed, or the machine restarted")
            if state:
                return int(state)
            if not news:
                time.sleep(poll_s)

    def fetch(self, names: Iterable[str], into: Path) -> None:
        """Those of the names that are there, under `into`."""
        there = " ".join(shlex.quote(name) for name in names)
        listed = f'for name in {there}; do [ ! -e "$name" ] || printf \'%s\\n\' "$name"; done'
        line = f"cd {shlex.quote(self.folder)} && {{ {listed}; }} | tar -czf - -T -"
        into.mkdir(parents=True, exist_ok=True)
        damaged = None
        with tempfile.TemporaryFile() as errors:
            fetching = subprocess.Popen(
                self._ssh(line), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
            assert fetching.stdout is not None
            try:
                with tarfile.open(fileobj=fetching.stdout, mode="r|gz") as archive:
                    archive.extractall(into, filter=_harmless)
            except (tarfile.TarError, EOFError, OSError) as error:
                damaged = error
            fetching.stdout.close()
            code = fetching.wait()
            errors.seek(0)
            self._judge("pack the results", code, errors.read())
        if damaged is not None:
            raise RankscopeError(f"the results came back damaged: {damaged}")

    def tell_fetched(self) -> None:
        self.call(f"touch {self._path('fetched')}")

    def _path(self, name: str) -> str:
        return shlex.quote(f"{self.folder}/{name}")

    def _ssh(self, line: str) -> list[str]:
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=15"]
        # A port of a rented machine is another machine tomorrow: its key is not remembered.
        options += ["-o", f"UserKnownHostsFile={os.devnull}", "-o", "LogLevel=ERROR", "-o", "ServerAliveInterval=15"]
        if self.identity is not None:
            options += ["-i", str(self.identity)]
        return ["ssh", *options, "-p", str(self.port), f"root@{self.host}", line]

    def _judge(self, what: str, code: int, errors: bytes) -> None:
        if code == 0:
            return
        told = " ".join(errors.decode(errors="replace").split())[-300:]
        if code == _NO_CONTACT:
            raise NoContact(f"ssh to {self.host}:{self.port} failed: {told or 'no reason given'}")
        raise RankscopeError(f"on {self.host} '{what[:80]}' failed with exit code {code}: {told}")


class _Counted:
    """A file that counts what is written into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        return self._file.write(data)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(entry.name).name in _LEFT_OUT:
        return None
    return entry if entry.isreg() or entry.isdir() or entry.issym() else None


def _harmless(entry: tarfile.TarInfo, into: str) -> tarfile.TarInfo | None:
    """Links and names that lead out of the folder stay away; all the rest comes."""
    try:
        return tarfile.data_filter(entry, into)
    except tarfile.FilterError:
        return None


def environment_file(names: Iterable[str], environment: Mapping[str, str]) -> bytes:
    """Variables as shell lines. They go over the connection only, never into a script or onto the screen."""
    lines = []
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"--env {name}: give the name of a variable; its value is taken from this environment")
        if name not in environment:
            raise UsageError(f"--env {name}: it is not set here")
        lines.append(f"{name}={shlex.quote(environment[name])}\n")
    return "".join(lines).encode()


def public_key(identity: Path | None) -> tuple[str, Path]:
    """The key that the machine lets in, and the private file of it."""
    folder = Path.home() / ".ssh"
    candidates = [identity] if identity is not None else [folder / f"id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
    for private in candidates:
        public = private.with_name(f"{private.name}.pub")
        if private.is_file() and public.is_file():
            return public.read_text().strip(), private
    said = f"{identity} and {identity}.pub are not both there" if identity is not None else f"none in {folder}"
    raise UsageError(f"no ssh key: {said}. Make one with ssh-keygen -t ed25519, or give --ssh-key FILE")
