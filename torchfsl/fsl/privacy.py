"""Differential privacy of the opened sums: noise from both servers, and what it guarantees.

Each server adds to every value of its share, zeros and lanes included, its own draw of the discrete
Gaussian N_Z(0, s**2), before it commits to the share. So the opened sums carry two draws a value,
and one server, which knows its own, still faces the other's: s**2 counts against a server, 2 s**2
against everybody else, as long as no server leaves out its noise.

The guarantee is by client: two rounds are neighbours when they differ in one client's report, which
one of them replaces by zeros. It rests on `Plan.l2_bound`, which honest clients keep; that others
keep it, too, is verified under `proofs = "norm"` only. How many take part is not hidden.
`docs/privacy.md` has the derivations.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl import sampled_blocks as accountant_of_blocks
from torchfsl.fsl import sampled_gaussian
from torchfsl.fsl.noise import lanes as lanes_of
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.accounting import accounting, renyi_epsilon
from torchfsl.submodel.plan import MAX_BOUND

_ORDERS: Final = [
    *(1 + i / 32 for i in range(1, 96)),
    *range(4, 65),
    *(round(64 * 2 ** (i / 8)) for i in range(1, 49)),
]
_ROUNDING_VARIANCE: Final = 2.0
_ROUNDING_SLACK: Final = 5 * math.exp(-2 * math.pi**2 * _ROUNDING_VARIANCE)
"""A discrete Gaussian of variance v is a continuous one of variance v - 2, rounded at random, up to
a factor of exp(+-slack) in every probability; see `docs/privacy.md`."""


def l2_bound(encoding: FixedPoint, norm: float) -> int:
    """`Plan.l2_bound` for an L2 norm of real values; 0 for 0, no bound.

    Raises:
        ParameterError: the norm is negative, not finite, or beyond 2**62 units of the encoding, or
            positive and below one.
    """
    if not 0 <= norm < math.inf:
        raise ParameterError(f"the norm is {norm}: give a number from 0, which sets no bound")
    try:
        bound = math.floor(math.ldexp(norm, encoding.frac_bits))
    except OverflowError:
        bound = MAX_BOUND + 1
    if bound > MAX_BOUND:
        raise ParameterError(
            f"the norm {norm} is beyond 2**62 units of an encoding with {encoding.frac_bits} "
            "fraction bits, which bounds nothing: take a smaller one",
            code="out-of-range",
        )
    if norm and not bound:
        raise ParameterError(
            f"the norm {norm} is below {math.ldexp(1, -encoding.frac_bits):g}, one unit of an "
            f"encoding with {encoding.frac_bits} fraction bits: take more of them, or a larger one",
            code="bound-too-small",
        )
    return bound


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta) of a client's reports in all rounds together.

    Attributes:
        delta: the delta of both epsilons.
        rounds: rounds opened.
        sampled: reports of the largest round and the clients that they were drawn from, which only
            the public does not see; None for a client in every round.
        blocks: how many blocks of how many a client draws and sends in secret (`BlockSample`),
            which neither server nor public sees; None where the guarantee does not count on it.
        epsilon_server: against one server, which sees who takes part and knows its own noise; for
            a client that takes part in every round.
        epsilon_public: against everybody who sees the opened sums only.
        multiplier_server: noise over sensitivity in one round, against a server.
        multiplier_public: the same against the public.
        enforced: whether every report that is accepted keeps the bounds, because it has proven so
            (`proofs = "norm"`), up to a factor of the square root of the trees that one row can
            stand in. Else clients are trusted to keep them, each for its own privacy.
    """

    delta: float
    rounds: int
    sampled: tuple[int, int] | None
    blocks: tuple[int, int] | None
    epsilon_server: float
    epsilon_public: float
    multiplier_server: float
    multiplier_public: float
    enforced: bool


def multiplier(plan: Plan) -> float:
    """Noise over sensitivity in one round, against one server; 0 without noise."""
    return _noises(plan)[0].renyi if plan.noise_sigma else 0.0


def guarantee(
    plan: Plan,
    *,
    delta: float,
    rounds: int = 0,
    sampled: tuple[int, int] | None = None,
    sampled_blocks: bool = False,
) -> Guarantee:
    """What the plan's noise guarantees.

    Args:
        plan: with noise.
        delta: in (0, 1).
        rounds: rounds that are opened under plans like this one; 0 takes `plan.max_rounds`, which
            servers enforce.
        sampled: (n, K) where the reports of a round are those of n clients drawn at random from K,
            anew each round, and only the servers know who; n is that of the round with the largest
            n / K. It is no secret. None: a client may be in every round.
        sampled_blocks: state what holds for clients whose policy is `BlockSample`, whatever the
            policy of others.

    Raises:
        ParameterError: a plan without noise or, for blocks, of more than one segment of trees, a
            number out of range, or the extra is missing.
    """
    if not plan.noise_sigma:
        raise ParameterError(
            "the plan has no noise and guarantees nothing: see privacy.calibrate", code="no-noise"
        )
    reports, clients = (1, 1) if sampled is None else sampled
    if not 1 <= reports <= clients:
        raise ParameterError(f"sampled is {sampled}; it is (n, K) with n of K clients in a round")
    rounds = _checked_rounds(plan, delta, rounds)
    server, public = _noises(plan)
    blocks = _blocks(plan, sampled) if sampled_blocks else None
    of_server = _epsilon(server, delta, rounds, blocks=blocks)
    of_public = _epsilon(public, delta, rounds, reports / clients, blocks)
    # What a server's draw hides from its peer it hides from the public as well.
    return Guarantee(
        delta,
        rounds,
        sampled,
        blocks,
        of_server,
        min(of_server, of_public),
        server.renyi,
        max(server.renyi, public.renyi),
        plan.proofs == "norm",
    )


def calibrate(
    plan: Plan,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 0,
    lane_share: float = 0.1,
    sampled_blocks: bool = False,
) -> Plan:
    """The plan with noise that guarantees (epsilon, delta) against either server, and no more.

    Args:
        plan: with `l2_bound`.
        epsilon: for all rounds together, above 0.
        delta: in (0, 1).
        rounds: rounds that will be opened; 0 takes `plan.max_rounds`.
        lane_share: the lane's part of the budget, where there is a lane.
        sampled_blocks: as of `guarantee`.

    Raises:
        ParameterError: no bound, a number out of range, noise beyond the sampler or the ring, or
            the extra is missing.
    """
    if not plan.l2_bound:
        raise ParameterError(
            "noise needs a sensitivity: plan with l2_bound (privacy.l2_bound)",
            code="noise-without-bound",
        )
    if not epsilon > 0 or not 0 < lane_share < 1:
        raise ParameterError("epsilon lies above 0 and lane_share between 0 and 1")
    rounds = _checked_rounds(plan, delta, rounds)
    slack = rounds * sum(_num_values(plan)) * _ROUNDING_SLACK
    if epsilon <= 4 * slack:
        raise ParameterError(
            f"no noise reaches epsilon {epsilon} in {rounds} rounds", code="epsilon-unreachable"
        )
    wanted = math.sqrt(rounds) * float(
        accounting().get_sigma_gaussian(epsilon - 2 * slack, delta * math.exp(-slack))
    )
    share = lane_share if plan.lane_values else 0.0
    values, lanes = _sensitivities(plan)
    if sampled_blocks:
        return _least_noise(plan, wanted, epsilon, delta, rounds)
    sigma = _sigma(wanted * values / math.sqrt(1 - share))
    lane_sigma = _sigma(wanted * lanes / math.sqrt(share)) if plan.lane_values else 0
    return dataclasses.replace(plan, noise_sigma=sigma, lane_sigma=lane_sigma)


def _least_noise(plan: Plan, most: float, epsilon: float, delta: float, rounds: int) -> Plan:
    """The plan with the least noise, up to `most` times the sensitivity, that is enough."""
    sensitivity, _ = _sensitivities(plan)
    low, high = 0, _sigma(most * sensitivity)
    while high - low > 1 + high // 1000:
        middle = (low + high) // 2
        noisy = dataclasses.replace(plan, noise_sigma=middle)
        reached = guarantee(noisy, delta=delta, rounds=rounds, sampled_blocks=True)
        low, high = (low, middle) if reached.epsilon_server <= epsilon else (middle, high)
    return dataclasses.replace(plan, noise_sigma=high)


def _blocks(plan: Plan, sampled: tuple[int, int] | None) -> tuple[int, int]:
    """Blocks that a client sends, and of how many."""
    segment = plan.segments[0]
    if len(plan.segments) > 1 or segment.is_dense or plan.lane_values or sampled is not None:
        raise ParameterError(
            "sampled_blocks is stated for plans of one segment of trees without a lane, and not "
            "together with sampled: send the rest as blocks, too, or leave it out"
        )
    return segment.k_max, segment.m


def _sigma(gaussian: float) -> int:
    """The discrete Gaussian that hides as much as a continuous one of this standard deviation."""
    return math.ceil(math.sqrt(gaussian**2 + _ROUNDING_VARIANCE) * (1 + 1e-9))


def _checked_rounds(plan: Plan, delta: float, rounds: int) -> int:
    """The number of rounds to account for."""
    if not rounds and not plan.max_rounds:
        raise ParameterError(
            "say for how many rounds: give rounds, or plan with max_rounds", code="rounds-missing"
        )
    if not 0 < delta < 1 or rounds < 0:
        raise ParameterError(
            f"delta is {delta} and rounds {rounds}: delta must lie in (0, 1), rounds be 1 or more, "
            "or 0 for the plan's max_rounds"
        )
    return rounds or plan.max_rounds


def _sensitivities(plan: Plan) -> tuple[float, float]:
    """L2 norms of the most that one client adds to the values and to the lanes, in ring units."""
    counted = sum(s.k_max for s in plan.with_trees)
    counted += sum(plan.dense_values(s) - s.m for s in plan.dense)
    lanes = math.sqrt(counted) * plan.max_weight if plan.lane_values else 0.0
    return float(plan.l2_bound * plan.max_weight), lanes


class _Noise(NamedTuple):
    """Noise over sensitivity in one round.

    Attributes:
        renyi: of the Gaussian whose Renyi divergences are not below those of the round.
        gaussian: of the Gaussian whose outcomes become the round's by rounding; 0 where there is
            too little noise for this view.
        slack: logarithm of the largest factor by which probabilities then differ.
    """

    renyi: float
    gaussian: float
    slack: float


def _noises(plan: Plan) -> tuple[_Noise, _Noise]:
    """The noise against a server and against the public.

    Whitened by their sigmas, values and lanes together are one Gaussian, whose sensitivity is the
    root of the sum of both squares.
    """
    parts = list(
        zip(
            _sensitivities(plan),
            (plan.noise_sigma, plan.lane_sigma),
            _num_values(plan),
            strict=True,
        )
    )
    noises = []
    for draws in (1, 2):
        renyi = gaussian = slack = 0.0
        for most, sigma, count in parts:
            if not sigma or not most:
                continue
            # The sum of two discrete Gaussians is not one. It is near enough to change every
            # probability by a factor of exp(tau) at most (Kairouz, Liu, Steinke 2021, Prop. 14).
            tau = 10 * math.exp(-((math.pi * sigma) ** 2)) * count if draws == 2 else 0.0
            variance = draws * sigma**2
            renyi += most**2 / variance + 2 * tau
            left = variance - _ROUNDING_VARIANCE
            gaussian += most**2 / left if left > 0 else math.inf
            slack += tau + _ROUNDING_SLACK * count
        noises.append(_Noise(1 / math.sqrt(renyi), 1 / math.sqrt(gaussian), slack))
    return noises[0], noises[1]


def _num_values(plan: Plan) -> tuple[int, int]:
    """How many values, and how many lanes, carry noise."""
    counts = [plan.sum_values(s) for s in plan.segments]
    lanes = [
        int(np.count_nonzero(lanes_of(plan, s, count)))
        for s, count in zip(plan.segments, counts, strict=True)
    ]
    return sum(counts) - sum(lanes), sum(lanes)


def _epsilon(
    noise: _Noise,
    delta: float,
    rounds: int,
    rate: float = 1.0,
    blocks: tuple[int, int] | None = None,
) -> float:
    """Epsilon of so many rounds: the least of the bounds that hold."""
    bounds = [renyi_epsilon(noise.renyi, delta, rounds, _ORDERS)]
    slack = rounds * noise.slack
    if noise.gaussian and slack < 1:
        rest = delta * math.exp(-slack)
        multiplier = noise.gaussian / math.sqrt(rounds)
        bounds.append(2 * slack + float(accounting().get_epsilon_gaussian(multiplier, rest)))
        if rate < 1:
            of_samples = sampled_gaussian.epsilon(noise.gaussian, rest, rounds, rate)
            bounds.append(2 * slack + of_samples)
        if blocks:
            of_blocks = accountant_of_blocks.epsilon(noise.gaussian, rest, rounds, *blocks)
            bounds.append(2 * slack + of_blocks)
    return min(bounds)
