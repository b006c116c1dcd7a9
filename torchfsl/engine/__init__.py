"""torch: hooks on a model and its optimizers, from training steps to a sparse update and back.

Read `settings` (what is sent, and how), `hooks`, `claim`, `round`, `hints`, `policies` (what is
chosen), `wanted`, `fetched`, `choosing`, `residual` and `residuals`. `inventory`, `exchange` and
`specs` are about tensors, by name and by segment. `own_forward` has classes that read other rows,
`personal` and `client_state` what belongs to one client. The rest are `lookups` (rows), `watch`
(what a step changed), `memory` (what that costs), `status` and `torch_optimizer`. No file names a
protocol.

Invariant: model, optimizer and state_dict keys are as without hooks, except what a round loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.engine.hooks import Hooks as Hooks
    from torchfsl.engine.policies import BinTop as BinTop
    from torchfsl.engine.policies import BlockSample as BlockSample
    from torchfsl.engine.policies import BlockTopK as BlockTopK
    from torchfsl.engine.policies import Dense as Dense
    from torchfsl.engine.policies import Fixed as Fixed
    from torchfsl.engine.policies import RandomK as RandomK
    from torchfsl.engine.policies import Rows as Rows
    from torchfsl.engine.policies import TopK as TopK
    from torchfsl.engine.residual import Residual as Residual
    from torchfsl.engine.round import Round as Round
    from torchfsl.engine.settings import Settings as Settings

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
