"""Epsilon of rounds of random clients, if the number of clients is public.

The public sees the number of reports of each round. If a client is not drawn, another client takes
its place. If this other client sent the opposite update, the sum shows more than a Poisson sample
of the same rate would.

The program computes a lower bound of the true epsilon for these neighbours. This bound is above the
epsilon that Poisson accounting states. The program needs `torchfsl[privacy]`.
"""

from __future__ import annotations

import importlib

import numpy as np

from scripts.attacks.result import AttackResult
from torchfsl.fsl import sampled_gaussian

MULTIPLIER, RATE, ROUNDS, DELTA = 5.0, 0.1, 200, 1e-6


def true_epsilon(multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """A lower bound of epsilon for a client whose place is taken by one that sent the opposite."""
    pmf = importlib.import_module("dp_accounting.pld.pld_pmf")
    distribution = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    at = np.linspace(-1 - 12 * multiplier, 1 + 12 * multiplier, 200_001)
    out, drawn = (np.exp(-((at - mean) ** 2) / (2 * multiplier**2)) for mean in (-1.0, 1.0))
    weights = (1 - rate) * out + rate * drawn
    step = 1e-4
    losses = np.floor(sampled_gaussian.loss(at, multiplier, rate) / step).astype(np.int64)
    probabilities = np.bincount(losses - losses.min(), weights / weights.sum())
    one = pmf.DensePLDPmf(step, int(losses.min()), probabilities, 0.0, False)
    composed = distribution.PrivacyLossDistribution(one).self_compose(rounds)
    return float(composed.get_epsilon_for_delta(delta))


def poisson_epsilon(multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """Epsilon by accounting that takes the number of reports for a secret."""
    accounting = importlib.import_module("dp_accounting")
    accountant = accounting.pld.PLDAccountant(accounting.NeighboringRelation.REPLACE_SPECIAL)
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(multiplier))
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def sampled_rounds() -> AttackResult:
    """The true epsilon, compared with the statements of both methods of accounting."""
    true = true_epsilon(MULTIPLIER, RATE, ROUNDS, DELTA)
    off = poisson_epsilon(MULTIPLIER, RATE, ROUNDS, DELTA)
    on = sampled_gaussian.epsilon(MULTIPLIER, DELTA, ROUNDS, RATE)
    return AttackResult(
        name="rounds of random clients tell more than epsilon",
        off=f"epsilon {off:.3f} stated (Poisson), {true:.3f} true",
        on=f"epsilon {on:.3f} stated (fixed size), {true:.3f} true",
        worked_off=true > off,
        worked_on=true > on,
        cost="a rule: more epsilon stated",
    )
