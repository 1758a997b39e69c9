"""`check network`: the master's name, address and port, the interface in use, and clocks between nodes."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Mapping

from rankscope.addresses import interface_of
from rankscope.checks.model import Findings, Flaw, joined
from rankscope.checks.team import as_rank, own_limit, run_team
from rankscope.checks.world import clock_flaws, is_rank, join, leave, place_of, stray_variables

LIMIT_S = 20.0
CONNECT_S = 5.0


def check_network(environment: Mapping[str, str], limit_s: float = LIMIT_S) -> Findings:
    looks = [stray_variables(environment), master(environment), interfaces(environment)]
    if is_rank(environment) and environment.get("WORLD_SIZE", "1") != "1":
        # The port belongs to the world of this check: the others wait for it.
        looks.append(run_team("rankscope.checks.network", 1, limit_s, environment))
    return joined(looks)


def master(environment: Mapping[str, str]) -> Findings:
    """Does MASTER_ADDR resolve and answer, and is its port free where it is ours to serve?"""
    address = environment.get("MASTER_ADDR")
    text = environment.get("MASTER_PORT") or "29500"
    if not text.isdigit() or not 0 < int(text) < 65536:
        return Findings(
            flaws=(Flaw("address-unreachable", f"MASTER_PORT={text} is no port", "give a number from 1 to 65535"),)
        )
    port = int(text)
    try:
        found = socket.getaddrinfo(address or "localhost", port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return Findings(
            flaws=(
                Flaw(
                    "address-unreachable",
                    f"MASTER_ADDR={address} does not resolve: {getattr(error, 'strerror', None) or error}",
                    "use the address of the host of rank 0, or a name that every node knows (getent hosts NAME)",
                ),
            )
        )
    where = str(found[0][4][0])
    if not _is_ours(where):
        return _answers(address or where, where, port)
    if environment.get("RANK", "0") != "0" or environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return Findings(facts=(f"{address or 'localhost'} is this machine",))
    return _port_free(address or "localhost", port)


def _port_free(address: str, port: int) -> Findings:
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Findings(
                    flaws=(
                        Flaw(
                            "port-in-use",
                            f"port {port} of this machine is taken: rank 0 cannot serve the others there",
                            f"end who holds it (ss -ltnp 'sport = :{port}' shows who), or choose another MASTER_PORT",
                        ),
                    )
                )
            if error.errno == errno.EACCES:
                return Findings(
                    flaws=(Flaw("port-in-use", f"port {port} may not be used by this user", "use one above 1023"),)
                )
    return Findings(facts=(f"{address} is this machine, port {port} is free",))


def _answers(name: str, where: str, port: int) -> Findings:
    """A refused connection is an answer: the host is there, and rank 0 has not started yet."""
    try:
        with socket.create_connection((where, port), timeout=CONNECT_S):
            return Findings(facts=(f"{name} ({where}) answers on port {port}",))
    except ConnectionRefusedError:
        return Findings(facts=(f"{name} ({where}) is there; nobody listens on port {port} yet",))
    except OSError as error:
        seen = error.strerror or f"no answer within {CONNECT_S:g} s"
        return Findings(
            flaws=(
                Flaw(
                    "address-unreachable",
                    f"MASTER_ADDR={name} ({where}) does not answer: {seen}",
                    "is that the host of rank 0, is it up, does a firewall close the port?",
                ),
            )
        )


def interfaces(environment: Mapping[str, str]) -> Findings:
    """The interface that gloo and NCCL would take, and whether the chosen one exists."""
    names = [name for _, name in socket.if_nameindex()]
    flaws = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        chosen = environment.get(variable, "")
        wanted = [part for part in chosen.lstrip("=").split(",") if part]
        if not wanted or chosen.startswith("^"):
            continue
        exact = variable.startswith("GLOO") or chosen.startswith("=")
        if not any(name == part if exact else name.startswith(part) for name in names for part in wanted):
            flaws.append(
                Flaw(
                    "address-unreachable",
                    f"{variable}={chosen}, and this machine has no such interface (it has {', '.join(names)})",
                    f"set {variable} to one of them, or unset it",
                )
            )
    if flaws:
        return Findings(flaws=tuple(flaws))
    own = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(own, None, socket.AF_INET)[0][4][0])
    except socket.gaierror:
        # gloo then takes the loopback, which only matters between machines.
        return Findings(facts=(f"the name of this machine ({own}) does not resolve: gloo takes the loopback",))
    target = environment.get("MASTER_ADDR") or address
    used = _source_address(target) or address
    return Findings(facts=(f"interface: {interface_of(used) or 'unknown'} ({used})",))


def _source_address(target: str) -> str | None:
    """From which address a packet to the target would leave; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
        return True
    except OSError:
        return False


def main() -> Findings:
    """One rank's part: the clocks of all nodes."""
    world = join(place_of(os.environ), own_limit(LIMIT_S), "network")
    found = clock_flaws(world)
    leave(world)
    return found


if __name__ == "__main__":
    sys.exit(as_rank(main))
