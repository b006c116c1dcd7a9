"""The attack of SESA's section III on MNIST: samples that sums of gradients give away.

`scripts.attacks.isolated_submodels` plays it; here its counts become a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.attacks.isolated_submodels import NO_LIMIT, Network, cohorts, pairs
from scripts.reproduction.runs import data_folder
from torchfsl.errors import ParameterError
from torchfsl.sesa import SesaPlan
from training.data.tables import load_images

TRIALS, ROUNDS, HIDDEN = 200, 60, 200
COHORTS = (6, 20, 30)
"""Half of each cohort is narrow; `SesaPlan.max_isolation` refuses all except the last."""


def sesa_attack(data: Path | None) -> dict[str, Any]:
    """How often samples are read off the sums of pairs, and off those of rounds of SESA."""
    folder = data_folder(data, "sesa-attack", "mnist")
    network = Network.around(load_images(str(folder)).train, hidden=HIDDEN)
    return {
        "trials": TRIALS,
        "pairs": {
            name: pairs(network, TRIALS, positions_known=known)
            for name, known in (("positions known", True), ("sums alone", False))
        },
        "rounds": ROUNDS,
        "cohorts": {str(clients): _cohort(network, clients) for clients in COHORTS},
    }


def _cohort(network: Network, clients: int) -> dict[str, Any]:
    """Rounds of the protocol, with the limit lifted if the plan would be refused."""
    try:
        plan, refused = network.plan(clients, SesaPlan.max_isolation), False
    except ParameterError:
        plan, refused = network.plan(clients, NO_LIMIT), True
    found = cohorts(network, plan, ROUNDS)
    return {
        "refused": refused,
        "isolation": plan.isolation([clients // 2] * 2),
        "submodels": found.submodels,
        "units": found.units,
    }
