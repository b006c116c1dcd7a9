"""Federated submodel learning: private, exact aggregation of sparse updates by two servers.

Start with help(torchfsl.Federated).

    Federated       a torch model, its optimizer and the plan. `fed.round(...)` returns a `Round`
    LocalServers    the servers in this process. `servers.round()` returns a `RoundResult`
    simulate        many clients in this process. Returns a `SimulationResult`
    connect         a client's `RemoteServers`. A `Receipt` has the bytes of a round
    Coordinator     the coordinator of a task on two running servers
    ClientPolicy    what a client refuses, whatever the servers offer
    Plan, estimate  what all parties agree on, and what it costs
    Rows, Dense, TopK, BlockTopK, FixedPoint    what is sent of a model, and how
    Error, backend  the root of all errors; the kernels in use

Modules: `optim` (the servers' optimizers), `policies` (rare ones), `privacy` (accounting of noise),
`fsl` (the protocol of two servers), `sesa` and `sefl` (other systems that sum updates), `privhfl`
(private queries to models), `errors`.

Inside, from the top: `integrations`, `federation`, `engine` and `service`, the protocols,
`submodel`, `crypto`, `kernels`, `faces`, `types`, `version`. docs/architecture.md has the map.

Names load when first used, so that a server's aggregation path never imports torch. There is no
`__all__`: `help` would print the classes whole.
"""

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl import errors as errors
    from torchfsl import fsl as fsl
    from torchfsl import optim as optim
    from torchfsl import policies as policies
    from torchfsl import privacy as privacy
    from torchfsl import privhfl as privhfl
    from torchfsl import sefl as sefl
    from torchfsl import sesa as sesa
    from torchfsl.crypto.fixed_point import FixedPoint as FixedPoint
    from torchfsl.engine.policies import BlockTopK as BlockTopK
    from torchfsl.engine.policies import Dense as Dense
    from torchfsl.engine.policies import Rows as Rows
    from torchfsl.engine.policies import TopK as TopK
    from torchfsl.engine.round import Round as Round
    from torchfsl.errors import Error as Error
    from torchfsl.federation.coordinator import Coordinator as Coordinator
    from torchfsl.federation.federated import Federated as Federated
    from torchfsl.federation.local_servers import LocalServers as LocalServers
    from torchfsl.federation.remote_servers import RemoteServers as RemoteServers
    from torchfsl.federation.remote_servers import connect as connect
    from torchfsl.federation.results import RoundResult as RoundResult
    from torchfsl.federation.results import SimulationResult as SimulationResult
    from torchfsl.federation.simulation import simulate as simulate
    from torchfsl.fsl.estimates.estimate import estimate as estimate
    from torchfsl.fsl.floors import ClientPolicy as ClientPolicy
    from torchfsl.fsl.plan.plan import Plan as Plan
    from torchfsl.kernels.backends import backend as backend
    from torchfsl.submodel.aggregation import Receipt as Receipt
    from torchfsl.version import __version__ as __version__

# Not by assignment, after which type checkers would take any name for one of these.
globals().update(zip(("__getattr__", "__dir__"), lazily(__name__), strict=True))
