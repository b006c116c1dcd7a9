"""Honest rounds of plans with an audit: both auditors pass each of them, and every round opens.

    python -m scripts.checks.audited_rounds --rounds 10000

Small shapes, in this process. Plans take turns: norm proofs alone, noise, correlated noise, counts
opened first, sessions of three rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from scripts.attacks.audited_lies import auditors, make_plan, reported, servers_of
from scripts.program import Options, option, program
from torchfsl.errors import Error
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round

_CLIENTS: Final = 3


def plans() -> Iterator[Plan]:
    """The plans that take turns."""
    plain = make_plan()
    yield plain
    noisy = dataclasses.replace(plain, noise_sigma=300)
    yield noisy
    limits = {"min_separation": 3, "max_rounds": 1 << 19}
    yield dataclasses.replace(noisy, noise_taps=(16, 8, 6), **limits)
    counted = dataclasses.replace(plain, lane="count", min_contributors=2)
    yield dataclasses.replace(counted, noise_sigma=300, lane_sigma=2)
    yield make_plan(max_epochs=3)


@program(option("--rounds", type=int, default=100))
def main(options: Options) -> int:
    """Play; the status is 1 if a server was named or a round did not open."""
    made = [
        (servers_of(plan), auditors(plan), {} if plan.max_epochs > 1 else None) for plan in plans()
    ]
    opened, failed = 0, []
    for number in range(1, options.rounds + 1):
        servers, judges, members = made[number % len(made)]
        try:
            reported(servers, number=number, clients=_CLIENTS, members=members)
            opened += finish_round(servers, auditors=judges).num_clients == _CLIENTS
        except Error as error:
            failed.append(f"round {number}: {error}")
    print(f"{opened} of {options.rounds} honest rounds opened, {len(failed)} did not")
    print("\n".join(failed[:10]))
    return int(opened != options.rounds)
