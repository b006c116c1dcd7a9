"""An aggregator that adds ciphertexts, and a key holder that decrypts masked sums.

SEFL after Deng, Wang, Meng et al., exact and without its garbled circuit. Read `round` (one round
on one screen), `sefl_plan` (what is agreed and what is refused) and `packing` (updates and numbers
modulo t). Then read `messages` (the wire), `client`, `aggregator`, `provider` (the key holder),
`privacy`. `explain` tells a plan and its costs in words.

Invariant: the aggregate is bit-identical to the plaintext sum of the updates that arrived, plus the
noise that both servers added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.sefl.aggregator import Aggregator as Aggregator
    from torchfsl.sefl.client import Client as Client
    from torchfsl.sefl.provider import KeyHolder as KeyHolder
    from torchfsl.sefl.round import AggregatorAndKeyHolder as AggregatorAndKeyHolder
    from torchfsl.sefl.round import introduce as introduce
    from torchfsl.sefl.round import renew as renew
    from torchfsl.sefl.round import run_round as run_round
    from torchfsl.sefl.sefl_plan import PlanOptions as PlanOptions
    from torchfsl.sefl.sefl_plan import SeflPlan as SeflPlan
    from torchfsl.sefl.sefl_plan import build_plan as build_plan
    from torchfsl.sefl.sefl_plan import plan as plan

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()
