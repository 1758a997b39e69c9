"""Machines made of network namespaces: each with an address and a name of its own, on one bridge."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    """Its host name."""
    namespace: str
    link: str
    """The bridge's end of its cable."""
    address: str

    def command(self, *words: object) -> list[str]:
        """The same command, run on this machine."""
        inner = f'hostname {self.name} && exec "$0" "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", inner, *map(str, words)]

    def pull_the_cable(self) -> None:
        run("ip", "link", "set", self.link, "down")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def why_not() -> str | None:
    """Why such machines cannot be made here; None where they can."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip and unshare are not installed"
    probe = f"rsprobe{uuid.uuid4().hex[:5]}"
    try:
        run("ip", "link", "add", probe, "type", "bridge")
        run("ip", "link", "del", probe)
        run("unshare", "--uts", "true")
    except (OSError, subprocess.CalledProcessError):
        return "this user may not make network namespaces"
    return None


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """node-0, node-1, ... with addresses 10.94.N.1, ...; removed afterwards."""
    mark = uuid.uuid4().hex[:5]
    net = os.getpid() % 250
    bridge = f"rb{mark}"
    made = [Host(f"node-{n}", f"rs{mark}{n}", f"rv{mark}{n}", f"10.94.{net}.{n + 1}") for n in range(count)]
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
        for host in made:
            run("ip", "netns", "add", host.namespace)
            run("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            run("ip", "link", "set", host.link, "master", bridge, "up")
            run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            run("ip", "-n", host.namespace, "link", "set", "eth0", "up")
            run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


PYTHON = sys.executable
