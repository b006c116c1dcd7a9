"""One server and clients of different sizes: submodels hidden by Lagrange codes, sums exact.

Secure Submodel Aggregation after Sami and Guler. Read `round` (one round on one screen),
`sesa_plan` (what is agreed and what is refused), `isolated` (why), `planner`, `coding` (the
mathematics of a round) and `cohort`. Then read `messages` (the wire), `channels` (from client to
client through the server), `transport`, `client` and `client_round`, `server`. `explain` tells a
plan and its costs in words. `sharded` cuts a torch network into submodels; it alone imports torch.

Invariant: the aggregate and the plaintext sum of the survivors' updates are bit-identical, whoever
else drops out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.sesa.client import Client as Client
    from torchfsl.sesa.isolated import isolation as isolation
    from torchfsl.sesa.planner import PlanOptions as PlanOptions
    from torchfsl.sesa.planner import build_plan as build_plan
    from torchfsl.sesa.planner import plan as plan
    from torchfsl.sesa.round import OneServer as OneServer
    from torchfsl.sesa.round import run_round as run_round
    from torchfsl.sesa.server import Server as Server
    from torchfsl.sesa.sesa_plan import SesaPlan as SesaPlan
    from torchfsl.sesa.sesa_plan import Width as Width
    from torchfsl.sesa.sharded import Sharded as Sharded

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
