"""Two servers and point functions: rows hidden by trees, values by hints, sums exact.

Read `round` (one round on one screen) and `in_process` (both servers for it). Then read `plan`
(what is agreed), `floors` (what each party demands of it), `cuckoo` (one row per bin) and `dpf`
(one tree and what is done on it). The wire is in `messages`, `bodies` and `uploads`, the way in
`transport`, the parties in `client` and `server`.

Noise and what it guarantees are in `noise`, `privacy`, `sampled_gaussian`, `sampled_blocks` and
`composing`. `union` is private set union, `costs` and `explain` tell what a plan costs, `estimates`
what a round takes, `advantage` what attackers gain. `suite` has the constants.

Invariant: the aggregate and the plaintext sum of the same quantised updates are bit-identical.

`audit`: transcripts of one server, and their replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.fsl.client.client import Client as Client
    from torchfsl.fsl.costs import predict as predict
    from torchfsl.fsl.floors import ClientPolicy as ClientPolicy
    from torchfsl.fsl.plan.plan import Plan as Plan
    from torchfsl.fsl.plan.planner import PlanOptions as PlanOptions
    from torchfsl.fsl.plan.planner import build_plan as build_plan
    from torchfsl.fsl.round import begin_round as begin_round
    from torchfsl.fsl.round import finish_round as finish_round
    from torchfsl.fsl.round import run_round as run_round
    from torchfsl.fsl.server.server import Server as Server

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
