"""The two servers as processes: mutual TLS, durable rounds, and the clients' side of the network.

Needs the `service` extra. Read `task`, `state` (bytes on disk), `net` (who calls, and how bytes
travel), `server` (one server that survives a crash), `client` (the way to both servers), `local`
(both on this machine). The `torchfsl` command is in `serving`, `reporting`, `watching`, `doctor`,
`state_checks`, `machine`, `backup`, `estimating` and `command`.

Invariant: an acknowledged report is in the sum of its round, or that round opens nothing.

`auditor`: the process that audits one server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.service.client.owner import Owner as Owner
    from torchfsl.service.client.remote import connect as connect
    from torchfsl.service.local import LoopbackServers as LoopbackServers
    from torchfsl.service.net.tokens import Issuer as Issuer
    from torchfsl.service.task import Task as Task
    from torchfsl.service.task import bind_plan as bind_plan

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
