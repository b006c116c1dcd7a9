"""Flower orchestrates, two torchfsl servers aggregate, clients reach both servers directly.

Needs the extras `flower` and `service`. Read `strategy` (what runs in the ServerApp: it opens and
closes rounds as the owner of the task), `app_client` (what runs in a ClientApp: a round, and an
evaluation), `servers` (the two servers as the strategy sees them), `node` (what a SuperNode's
settings say), `records` (what Messages hold), `words` (what errors tell) and `memory` (what stays
at a node between rounds).

Invariant: no Message holds an array, nor the words of an error in a round; certificates come from a
node's own settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.integrations.flower.app_client import client_evaluation as client_evaluation
    from torchfsl.integrations.flower.app_client import client_round as client_round
    from torchfsl.integrations.flower.strategy import SubmodelAveraging as SubmodelAveraging

_HOMES = {
    "SubmodelAveraging": "strategy",
    "client_evaluation": "app_client",
    "client_round": "app_client",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazily(__name__, _HOMES)
