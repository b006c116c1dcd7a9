"""`HOST:PORT` and paths as settings write them, sockets, and what counts as one caller."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path
from typing import Final

from torchfsl.errors import ParameterError

_BIND_REMEDIES: Final = {
    errno.EADDRINUSE: "name a free port, or stop the program that uses this port",
    errno.EADDRNOTAVAIL: "name an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: "name a port of 1024 or more",
}


def split_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` in its parts.

    Raises:
        ParameterError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ParameterError(
            f"expected HOST:PORT or [IPV6]:PORT, got {text!r}: write an IPv6 address in brackets, "
            "such as [::1]:7000",
            code="invalid-address",
        )
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParameterError(
            f"expected HOST:PORT, got {text!r}: write an address such as 127.0.0.1:7000",
            code="invalid-address",
        )
    return host, int(port)


def user_path(text: str) -> Path:
    """A path of a setting or an option: `~` stands for the home folder, as in a shell.

    Raises:
        ParameterError: the user that it names has none.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ParameterError(f"{text!r}: {error} Write the whole path") from error


def bound_socket(text: str, setting: str = "") -> socket.socket:
    """A TCP socket bound to an address, which does not listen yet; `[::]` also takes IPv4.

    An error begins with the name of the `setting` that has the address, if one is given.

    Raises:
        ParameterError: the address cannot be taken.
    """
    host, port = split_address(text)
    where = f"{setting}: " if setting else ""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ParameterError(
            f"{where}cannot listen on {text}: {error.strerror}", code="address-in-use"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        bound.bind(address)
    except OSError as error:
        bound.close()
        remedy = _BIND_REMEDIES.get(error.errno or 0, "name another address")
        raise ParameterError(
            f"{where}cannot listen on {text} ({error.strerror}): {remedy}", code="address-in-use"
        ) from error
    return bound


def group_of(host: str) -> str:
    """Addresses that count as one caller: an IPv4 address, or the /64 of an IPv6 address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
