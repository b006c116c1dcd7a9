"""How many files this process may have open, and how many connections that is enough for."""

from __future__ import annotations

import resource
from typing import Final

from torchfsl.errors import ParameterError

RESERVED: Final = 192
"""Files that connections never take: the state's, the log's, the peer's, those of metrics."""

FILES_A_CONNECTION: Final = 3
"""The caller's socket, and both ends of the way from the door to gRPC."""

_FEWEST_CONNECTIONS: Final = 32


def raise_file_limit() -> int:
    """Raise the limit of open files as far as this process may; the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def file_limit() -> int:
    """The limit that `raise_file_limit` would reach."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def files_for(connections: int) -> int:
    """The limit of open files under which so many connections fit."""
    return RESERVED + FILES_A_CONNECTION * connections


def connections_for(files: int, wanted: int) -> int:
    """How many of the wanted connections fit under a limit of open files.

    Raises:
        ParameterError: too few to serve anybody.
    """
    fit = (files - RESERVED) // FILES_A_CONNECTION
    if fit < min(wanted, _FEWEST_CONNECTIONS):
        raise ParameterError(
            f"this process may open {files} files, a server needs {files_for(_FEWEST_CONNECTIONS)} "
            f"at least, and {files_for(wanted)} for {wanted} connections: raise the hard limit "
            "(ulimit -Hn, LimitNOFILE= of systemd)"
        )
    return min(fit, wanted)
