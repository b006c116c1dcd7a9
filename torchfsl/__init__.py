"""Federated submodel learning: private, exact aggregation of sparse updates by two servers.

The names below are loaded when first used, so that a server's aggregation path never imports torch.
Wings, from the bottom up: `kernels`, `crypto`, `submodel`; the protocols `fsl`, `sesa` and `sefl`,
and `privhfl`, which asks models instead of adding updates; `engine` and `service`; on top
`integrations`, the library inside the frameworks of others. Below them
`errors`, `types`, `version` and `faces` (how names load late); see docs/architecture.md.
"""

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.crypto.fixed_point import FixedPoint as FixedPoint
    from torchfsl.engine.engine import SubmodelEngine as SubmodelEngine
    from torchfsl.engine.policies import BlockSample as BlockSample
    from torchfsl.engine.policies import BlockTopK as BlockTopK
    from torchfsl.engine.policies import Dense as Dense
    from torchfsl.engine.policies import Fixed as Fixed
    from torchfsl.engine.policies import RandomK as RandomK
    from torchfsl.engine.policies import Rows as Rows
    from torchfsl.engine.policies import TopK as TopK
    from torchfsl.engine.residual import Residual as Residual
    from torchfsl.engine.simulation import simulate as simulate
    from torchfsl.fsl.client.client import Client as Client
    from torchfsl.fsl.estimates.estimate import estimate as estimate
    from torchfsl.fsl.explain import explain as explain
    from torchfsl.fsl.plan.plan import Plan as Plan
    from torchfsl.fsl.round import begin_round as begin_round
    from torchfsl.fsl.round import finish_round as finish_round
    from torchfsl.fsl.round import run_round as run_round
    from torchfsl.fsl.server.server import Server as Server
    from torchfsl.kernels.backends import backend as backend
    from torchfsl.submodel.server_lazy import ServerLazyAdam as ServerLazyAdam
    from torchfsl.submodel.server_model import ServerModel as ServerModel
    from torchfsl.submodel.server_optimizers import ServerAdam as ServerAdam
    from torchfsl.submodel.server_optimizers import ServerSGD as ServerSGD
    from torchfsl.version import __version__ as __version__

_HOMES = {
    "BlockSample": "engine.policies",
    "BlockTopK": "engine.policies",
    "Client": "fsl.client.client",
    "Dense": "engine.policies",
    "Fixed": "engine.policies",
    "FixedPoint": "crypto.fixed_point",
    "Plan": "fsl.plan.plan",
    "RandomK": "engine.policies",
    "Residual": "engine.residual",
    "Rows": "engine.policies",
    "Server": "fsl.server.server",
    "ServerAdam": "submodel.server_optimizers",
    "ServerLazyAdam": "submodel.server_lazy",
    "ServerModel": "submodel.server_model",
    "ServerSGD": "submodel.server_optimizers",
    "SubmodelEngine": "engine.engine",
    "TopK": "engine.policies",
    "backend": "kernels.backends",
    "begin_round": "fsl.round",
    "estimate": "fsl.estimates.estimate",
    "explain": "fsl.explain",
    "finish_round": "fsl.round",
    "run_round": "fsl.round",
    "simulate": "engine.simulation",
    "__version__": "version",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazily(__name__, _HOMES)
