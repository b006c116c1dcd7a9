"""Flower orchestrates, two torchfsl servers aggregate, clients reach both servers directly.

Needs the extras `flower` and `service`. Read `strategy` (for the ServerApp: it opens and closes
rounds as the coordinator of the task). Then read `app_client`, for a ClientApp: the servers that
`Federated.round` and `Federated.evaluating` take. The rest are `servers` (the two servers as the
strategy sees them), `node` (settings of a SuperNode), `records` (contents of Messages), `words`
(errors) and `memory` (state of a client between rounds).

Invariant: no Message holds an array, nor the words of an error in a round; certificates come from a
node's own settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.integrations.flower.app_client import NodeServers as NodeServers
    from torchfsl.integrations.flower.app_client import client_servers as client_servers
    from torchfsl.integrations.flower.strategy import SubmodelAveraging as SubmodelAveraging

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
