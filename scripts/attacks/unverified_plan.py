"""The owner plans without check words: a malicious client writes to rows that it may not touch.

Whether trees are checked stands in the plan, which the owner alone makes. The client alters a
correction word of its own report; every leaf below it becomes garbage in the sum.
"""

from __future__ import annotations

import numpy as np

from scripts.attacks import timing
from scripts.attacks.forged_reports import forge, make_plan
from scripts.attacks.forgeries import flip_correction_words
from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.errors import ParameterError
from torchfsl.fsl import costs
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess

_FLOORS = ClientPolicy(joint_coin=False, sealed=False, min_clients=1)


def run() -> AttackResult:
    """A forged report under the owner's plan, without floors and with the default ones."""
    plan = make_plan(64, 64, 0, 1, verified=False)
    ruined = _ruined_rows(plan)
    try:
        _FLOORS.check(plan)
        seen = "the plan was accepted"
    except ParameterError as error:
        seen = f"refused: {error}"
    checked, unchecked = (timing.honest_plan(malicious_security=on) for on in (True, False))
    return AttackResult(
        "a plan without check words",
        off=f"one report of {plan.segments[0].num_trees} trees ruined {ruined} rows",
        on=seen,
        worked_off=ruined > plan.segments[0].num_trees,
        worked_on=not seen.startswith("refused"),
        extra_bytes=costs.client_bytes(checked) - costs.client_bytes(unchecked),
        time_ratio=timing.ratio(
            lambda: timing.honest_round(unchecked), lambda: timing.honest_round(checked)
        ),
    )


def _ruined_rows(plan: Plan) -> int:
    """Rows of the aggregate that no honest clients could make."""
    rng = np.random.default_rng(1)
    servers = two_servers(plan)
    begin_round(servers, 1)
    report = forge(plan, 0, 1, rng)
    for tree in report.trees:  # the first levels of the first trees: much lies below them
        tree.cw[0] ^= 0x10
    flip_correction_words(report, rng)
    wire = InProcess(*servers)
    for party, message in report.messages():
        wire.send(party, message)
    opened = finish_round(servers)  # what is out of range is zeroed, and counted
    return opened.zeroed["values"]
