"""What both servers' noise guarantees against the aggregator, the key holder and the public.

The aggregator adds a draw of the discrete Gaussian N_Z(0, s**2) to every opened number and the key
holder another. A server knows its own: against the aggregator only the key holder's draw counts,
and against the key holder, which sees the model that comes out, only the aggregator's. Against
everybody else both count; the bound here is the smaller of that with two draws and that with one.

Neighbours differ in one client's update, replaced by zeros, whose L2 norm is at most `l2_bound`
times `max_weight`, and in its weight. That rests on honest clients. The paper has no bound on an
update, so that its noise guarantees nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.submodel.accounting import renyi_epsilon

_ORDERS: Final = [1 + i / 32 for i in range(1, 96)] + list(range(4, 513))


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta) of a client's updates in all rounds together.

    Attributes:
        delta: of all epsilons.
        rounds: opened.
        epsilon_aggregator: against the aggregator, which knows its own noise.
        epsilon_key_holder: against the key holder, which knows its own.
        epsilon_public: against a party that sees only the aggregates, or the models.
    """

    delta: float
    rounds: int
    epsilon_aggregator: float
    epsilon_key_holder: float
    epsilon_public: float


def guarantee(plan: SeflPlan, *, delta: float, rounds: int = 0) -> Guarantee:
    """The guarantee of the plan's noise for a client that is in every round.

    Args:
        plan: with noise.
        delta: in (0, 1).
        rounds: that are opened; 0 takes `plan.max_rounds`, on which the key holder insists.

    Raises:
        ParameterError: a plan without noise, a number out of range, or the extra is missing.
    """
    rounds = rounds or plan.max_rounds
    if not plan.noise_sigma:
        raise ParameterError(
            "the plan adds no noise, so there is no privacy guarantee: make a plan with "
            "noise_sigma",
            code="no-noise",
        )
    if not 0 < delta < 1 or rounds < 1:
        raise ParameterError(
            f"delta is {delta} and rounds is {rounds}, expected delta above 0 and below 1, and 1 "
            "round or more: pass such numbers, or make a plan with max_rounds"
        )
    alone, both = (
        renyi_epsilon(1 / math.sqrt(_loss(plan, draws)), delta, rounds, _ORDERS) for draws in (1, 2)
    )
    return Guarantee(delta, rounds, alone, alone, min(alone, both))


def _loss(plan: SeflPlan, draws: int) -> float:
    """Squared sensitivity over variance in one round.

    The Renyi divergences of one discrete Gaussian are at most those of the continuous Gaussian
    (Canonne, Kamath, Steinke 2020, Theorem 4). The sum of two discrete Gaussians is not a discrete
    Gaussian. Each of its probabilities is within a factor exp(tau) of that of a discrete Gaussian
    (Kairouz, Liu, Steinke 2021, Prop. 14).
    """
    total = 0.0
    num_sums = plan.num_values - plan.lane_values
    parts = [(plan.l2_bound * plan.max_weight, plan.noise_sigma, num_sums)]
    if plan.lane_values:
        parts.append((plan.max_weight, plan.lane_sigma, 1))
    for most, sigma, count in parts:
        tau = 10 * math.exp(-((math.pi * sigma) ** 2)) * count if draws == 2 else 0.0
        total += most**2 / (draws * sigma**2) + 2 * tau
    return total
