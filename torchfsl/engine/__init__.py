"""torch: hooks on a model and its optimizers, from training steps to a sparse update and back.

Read `engine` (the facade, and the one file that names a protocol), `settings` (what it refuses),
`handle`, `claim`, `round`, `hints`, `policies` (what is chosen), `wanted`, `fetched`, `choosing`,
`residual` and `residuals`; `inventory`, `exchange` and `specs` (tensors, by name and by segment),
`personal` (what stays), `lookups` (rows), `watch` (what a step changed), `memory` (what that
costs), `status`, `simulation`, `simulation_checks`, `torch_optimizer`.

Invariant: model, optimizer and state_dict keys are as without hooks, but for what a round loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.engine.engine import SubmodelEngine as SubmodelEngine
    from torchfsl.engine.handle import Handle as Handle
    from torchfsl.engine.policies import BlockSample as BlockSample
    from torchfsl.engine.policies import BlockTopK as BlockTopK
    from torchfsl.engine.policies import Dense as Dense
    from torchfsl.engine.policies import Fixed as Fixed
    from torchfsl.engine.policies import RandomK as RandomK
    from torchfsl.engine.policies import Rows as Rows
    from torchfsl.engine.policies import TopK as TopK
    from torchfsl.engine.residual import Residual as Residual
    from torchfsl.engine.round import TrainingRound as TrainingRound

_HOMES = {
    "BlockSample": "policies",
    "BlockTopK": "policies",
    "Dense": "policies",
    "Fixed": "policies",
    "Handle": "handle",
    "RandomK": "policies",
    "Residual": "residual",
    "Rows": "policies",
    "SubmodelEngine": "engine",
    "TopK": "policies",
    "TrainingRound": "round",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazily(__name__, _HOMES)
