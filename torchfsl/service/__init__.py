"""The two servers as processes: mutual TLS, durable rounds, and the clients' side of the network.

The `torchfsl` command is in `command`. Nothing here imports torch. Needs the `service` extra
(grpcio, prometheus-client). From the bottom up:

    arrays, records, ledger     bytes of arrays, the report log, the SQLite state
    identity, certificates      who a certificate speaks for; a development authority
    calls, channels             how messages become streams; errors and versions on the way
    storage, node               one server whose every step survives a crash
    relays, coordinator         what a server tells the other
    handlers, process           what it answers, and the process around it
    links, remote, owner        a client's transport, the owner; programs start with `connect`
"""

from __future__ import annotations

from typing import Any

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """Load `connect` on first use."""
    if name == "connect":
        from torchfsl.service.remote import connect

        return connect
    raise AttributeError(f"module 'torchfsl.service' has no attribute {name!r}")
