"""Addresses and interfaces of this machine."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def own_address(peer: str, port: int) -> str:
    """The address of this machine from which the store is reached."""
    for family, _, _, _, target in socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(target)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The interface with this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def link_is_down(address: str) -> bool:
    """The interface that had this address has lost its carrier, its address, or is switched off."""
    if address.startswith("127.") or address == "::1":
        return False
    name = interface_of(address)
    if name is None:
        return ":" not in address  # the address itself is gone
    try:
        with open(f"/sys/class/net/{name}/operstate", encoding="ascii") as file:
            return file.read().strip() in ("down", "lowerlayerdown", "notpresent")
    except OSError:
        return False
