"""The two servers as processes: mutual TLS, durable rounds, and the clients' side of the network.

Nothing here imports torch. Needs the `service` extra (grpcio, prometheus-client). From the bottom
up:

    arrays, records, ledger, vault      bytes of arrays, the report log, the SQLite state, files
    identity, certificates              who a certificate speaks for; a development authority
    calls, channels, task               how messages become streams; errors, versions; the task
    storage, node                       one server whose every step survives a crash
    intake, streams, station            limits on what comes in; the node inside an event loop
    peers, coordinator                  what a server tells the other
    observe, handlers, process          metrics, what a server answers, the process around it
    links, outbox, remote, owner        the way to both servers for clients (`connect`) and `Owner`
    reporting, command                  the `torchfsl` command
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
