"""Differential privacy of the opened sums: noise from both servers, and what it guarantees.

Each server adds to every value of its share, zeros and lanes included, its own draw of the discrete
Gaussian N_Z(0, s**2), before it commits to the share. So the opened sums carry two draws a value,
and one server, which knows its own, still faces the other's: s**2 counts against a server, 2 s**2
against everybody else, as long as no server leaves out its noise.

The guarantee is by client: two rounds are neighbours when they differ in one client's report, which
one of them replaces by zeros. It rests on `Plan.l2_bound`, which honest clients keep and nobody
verifies. Who takes part, and how many, is not hidden. `docs/privacy.md` has the derivations.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.types import Bytes

Draw = Callable[[int, int], npt.NDArray[np.int64]]
"""Takes a standard deviation and a count, gives so many draws."""

_WHOLE_ORDERS: Final = [*range(2, 65), *(round(64 * 2 ** (i / 8)) for i in range(1, 49))]
_FRACTIONAL_ORDERS: Final = [1 + i / 32 for i in range(1, 96)]


def add_noise(
    plan: Plan, segment: TreeSegment, share: Bytes, draw: Draw = discrete_gaussian.sample
) -> Bytes:
    """One server's share of a segment's sums with its noise; the share itself without noise.

    Args:
        plan: gives both standard deviations.
        segment: the segment of the share.
        share: its ring values in order, lanes where the plan has them: `[m, W/8]`, or
            `[values, l/8]` for a dense segment.
        draw: tests inject a known one.

    Returns:
        Shape of `share`. Law: the opened sums are the plain sums plus both servers' draws, exactly.
    """
    if not plan.noise_sigma:
        return share
    values = share.reshape(-1, plan.encoding.ring_bits // 8)
    is_lane = _lanes(plan, segment, len(values))
    noise = np.empty(len(values), dtype=np.int64)
    num_lanes = int(np.count_nonzero(is_lane))
    noise[~is_lane] = draw(plan.noise_sigma, len(values) - num_lanes)
    noise[is_lane] = draw(plan.lane_sigma, num_lanes)
    noisy = ring.add(values, ring.from_int64(noise, plan.encoding.ring_bits))
    return noisy.reshape(share.shape)


def _lanes(plan: Plan, segment: TreeSegment, count: int) -> npt.NDArray[np.bool_]:
    """Which of a share's values belong to the lane."""
    is_lane = np.zeros(count, dtype=np.bool_)
    if segment.is_dense:
        is_lane[: plan.dense_values(segment) - segment.m] = True
    elif plan.lane_values:
        is_lane[:: segment.tau + plan.lane_values] = True
    return is_lane


def l2_bound(encoding: FixedPoint, norm: float) -> int:
    """`Plan.l2_bound` for an L2 norm of real values."""
    return math.floor(math.ldexp(norm, encoding.frac_bits))


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta) of a client's reports in all rounds together.

    Attributes:
        delta: the delta of both epsilons.
        rounds: rounds opened.
        sampling_rate: probability with which a client takes part in a round, which only the public
            does not see.
        epsilon_server: against one server, which sees who takes part and knows its own noise; for
            a client that takes part in every round.
        epsilon_public: against everybody who sees the opened sums only.
        multiplier_server: noise over sensitivity in one round, against a server.
        multiplier_public: the same against the public.
    """

    delta: float
    rounds: int
    sampling_rate: float
    epsilon_server: float
    epsilon_public: float
    multiplier_server: float
    multiplier_public: float


def guarantee(plan: Plan, *, delta: float, rounds: int, sampling_rate: float = 1.0) -> Guarantee:
    """What the plan's noise guarantees, by Renyi accounting.

    Args:
        plan: with noise.
        delta: in (0, 1).
        rounds: rounds that are opened under plans like this one, at least 1.
        sampling_rate: see `Guarantee`; each client flips its own coin each round (Poisson), and
            nobody but the servers learns the outcome.

    Raises:
        ParameterError: a plan without noise, a number out of range, or the extra is missing.
    """
    if not plan.noise_sigma:
        raise ParameterError("the plan has no noise and guarantees nothing: see privacy.calibrate")
    if not 0 < sampling_rate <= 1:
        raise ParameterError(f"sampling_rate is {sampling_rate}; it lies in (0, 1]")
    server, public = _multipliers(plan)
    return Guarantee(
        delta,
        rounds,
        sampling_rate,
        _epsilon(server, delta, rounds, 1.0),
        _epsilon(public, delta, rounds, sampling_rate),
        server,
        public,
    )


def calibrate(
    plan: Plan, *, epsilon: float, delta: float, rounds: int, lane_share: float = 0.1
) -> Plan:
    """The plan with the least noise that guarantees (epsilon, delta) against either server.

    Args:
        plan: with `l2_bound`.
        epsilon: for all rounds together, above 0.
        delta: in (0, 1).
        rounds: rounds that will be opened, at least 1.
        lane_share: the lane's part of the budget, where there is a lane.

    Raises:
        ParameterError: no bound, a number out of range, noise beyond the sampler or the ring, or
            the extra is missing.
    """
    if not plan.l2_bound:
        raise ParameterError("noise needs a sensitivity: plan with l2_bound (privacy.l2_bound)")
    if not epsilon > 0 or not 0 < lane_share < 1:
        raise ParameterError("epsilon lies above 0 and lane_share between 0 and 1")
    low, high = 0.0, 1.0
    while _epsilon(high, delta, rounds, 1.0) > epsilon:
        low, high = high, 2 * high
        if high > 1 << 40:
            raise ParameterError(f"no noise reaches epsilon {epsilon} in {rounds} rounds")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _epsilon(middle, delta, rounds, 1.0) <= epsilon else (middle, high)
        )
    share = lane_share if plan.lane_values else 0.0
    values, lanes = _sensitivities(plan)
    sigma = math.ceil(high * values / math.sqrt(1 - share))
    lane_sigma = math.ceil(high * lanes / math.sqrt(share)) if plan.lane_values else 0
    return dataclasses.replace(plan, noise_sigma=max(sigma, 1), lane_sigma=lane_sigma)


def _sensitivities(plan: Plan) -> tuple[float, float]:
    """L2 norms of the most that one client adds to the values and to the lanes, in ring units."""
    counted = sum(s.k_max for s in plan.with_trees)
    counted += sum(plan.dense_values(s) - s.m for s in plan.dense)
    lanes = math.sqrt(counted) * plan.max_weight if plan.lane_values else 0.0
    return float(plan.l2_bound * plan.max_weight), lanes


def _multipliers(plan: Plan) -> tuple[float, float]:
    """Noise over sensitivity in one round, against a server and against the public.

    Renyi divergences of independent coordinates add up, so values and lanes together behave like
    one Gaussian of sensitivity over noise sqrt(sum of both ratios squared).
    """
    of_server = of_public = 0.0
    num_lanes = sum(
        int(np.count_nonzero(_lanes(plan, s, plan.sum_values(s)))) for s in plan.segments
    )
    num_values = sum(plan.sum_values(s) for s in plan.segments) - num_lanes
    sigmas = (plan.noise_sigma, plan.lane_sigma)
    for most, sigma, count in zip(
        _sensitivities(plan), sigmas, (num_values, num_lanes), strict=True
    ):
        if sigma and most:
            ratio = most / sigma
            # The sum of two discrete Gaussians is not one. It is near enough to change every
            # divergence by at most tau a coordinate (Kairouz, Liu, Steinke 2021, Proposition 14).
            tau = 10 * math.exp(-((math.pi * sigma) ** 2))
            of_server += ratio**2
            of_public += ratio**2 / 2 + 2 * tau * count
    # What a server's draw hides from its peer it hides from the public as well.
    return 1 / math.sqrt(of_server), 1 / math.sqrt(min(of_public, of_server))


def _epsilon(multiplier: float, delta: float, rounds: int, sampling_rate: float) -> float:
    """Epsilon of `rounds` Gaussian mechanisms, each on a Poisson sample.

    Whole orders only on a sample: there the accountant's formula needs no more than the Renyi
    divergences and the symmetry of the noise, both of which the discrete Gaussian has.
    """
    if not 0 < delta < 1 or rounds < 1:
        raise ParameterError(f"delta ({delta}) lies in (0, 1) and rounds ({rounds}) is at least 1")
    accounting = _accounting()
    event = accounting.GaussianDpEvent(multiplier)
    orders: list[float] = list(_WHOLE_ORDERS)
    if sampling_rate < 1:
        event = accounting.PoissonSampledDpEvent(sampling_rate, event)
    else:
        orders = _FRACTIONAL_ORDERS + orders
    accountant = accounting.rdp.RdpAccountant(
        orders=orders, neighboring_relation=accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def _accounting() -> Any:
    """The accountant's package, an extra of this one."""
    try:
        importlib.import_module("dp_accounting.rdp")
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ParameterError(
            "privacy accounting needs dp-accounting: pip install 'torchfsl[privacy]'"
        ) from error
