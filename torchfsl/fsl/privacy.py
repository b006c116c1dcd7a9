"""Differential privacy of the aggregate: noise from both servers, and what it guarantees.

Before a server commits to its share, it adds a separate draw of the discrete Gaussian N_Z(0, s**2)
to every value, zeros and lanes included. So the aggregate carries two draws per value. One server
knows its own draw and still faces the other server's. Therefore s**2 counts against a server, and
2 s**2 against everybody else, as long as no server leaves out its noise.

The guarantee is by client: two rounds are neighbours when they differ in one client's report, which
one of them replaces by zeros. The guarantee rests on `Plan.l2_bound`, which honest clients keep.
Servers verify only under `proofs = "norm"` that other clients also keep the bound. The number of
clients is not hidden. `docs/specification/privacy-proofs.md` has the derivations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from torchfsl.errors import ParameterError, expect_a, is_real, whole_numbers
from torchfsl.faces import public
from torchfsl.fsl import sampled_blocks as accountant_of_blocks
from torchfsl.fsl import sampled_gaussian
from torchfsl.fsl.noise import lanes as lanes_of
from torchfsl.fsl.plan.headroom import encodings_that_pass, with_headroom
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel import taps as correlation
from torchfsl.submodel.accounting import accounting, renyi_epsilon
from torchfsl.submodel.norm_bound import l2_bound as l2_bound
from torchfsl.submodel.participation import check_clients, limits_of

_ORDERS: Final = [
    *(1 + i / 32 for i in range(1, 96)),
    *range(4, 65),
    *(round(64 * 2 ** (i / 8)) for i in range(1, 49)),
]
_ROUNDING_VARIANCE: Final = 2.0
_ROUNDING_SLACK: Final = 5 * math.exp(-2 * math.pi**2 * _ROUNDING_VARIANCE)
"""A discrete Gaussian of variance v is a continuous one of variance v - 2, rounded at random, up to
a factor of exp(+-slack) in every probability; see `docs/specification/privacy-proofs.md`."""
_CALIBRATED: Final[set[bytes]] = set()
"""Digests of plans without noise of which `calibrate` made one with noise in this process."""


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
        epsilon_server: against one server, which sees who participates and knows its own noise; for
            a client with `participations` reports.
        epsilon_public: against everybody who sees the aggregates only.
        multiplier_server: noise over sensitivity in one round, against a server.
        multiplier_public: the same against the public.
        enforced: whether every accepted report has proven that it keeps the bounds
            (`proofs = "norm"`), up to a factor of the square root of the trees that one row can
            stand in. Else clients are trusted to keep them, each for its own privacy.
        participations: reports of one client that the noise is charged for.
        min_separation: fewest rounds between two of them.
        taps: of noise that is correlated over rounds, for which both multipliers are those of all
            rounds together; empty for independent noise.
        epsilon_replaced: as `epsilon_server`, compared with other reports in place of zeros.
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
    participations: int
    min_separation: int
    taps: tuple[int, ...]
    epsilon_replaced: float


def charged(plan: Plan, rounds: int) -> int:
    """Most of `rounds` that the plan lets one client report in."""
    apart = -(-rounds // plan.min_separation)
    return min(plan.max_participations or apart, apart)


@public
def multiplier(plan: Plan) -> float:
    """Noise over sensitivity against one server, of a plan; 0 without noise.

    In one round; with `noise_taps` in all rounds together.
    """
    if not plan.noise_sigma:
        return 0.0
    reports = charged(plan, plan.max_rounds) if plan.noise_taps else 1
    return _noises(plan)[0].times(reports).renyi


@public
def guarantee(
    plan: Plan,
    *,
    delta: float,
    rounds: int = 0,
    sampled: tuple[int, int] | None = None,
    sampled_blocks: bool = False,
    other_plan: Plan | None = None,
) -> Guarantee:
    """The guarantee of the plan's noise.

    Args:
        plan: with noise.
        delta: in (0, 1).
        rounds: rounds that are opened under plans like this one; 0 takes `plan.max_rounds`, which
            servers enforce.
        sampled: (n, K) if the reports of a round are those of n clients drawn at random from K,
            anew each round, and only the servers know who. n is that of the round with the largest
            n / K. It is public. None: a client may be in every round.
        sampled_blocks: state what holds for clients whose policy is `BlockSample`, whatever the
            policy of others.
        other_plan: of a second task over the same clients; epsilon is for both together.

    Raises:
        ParameterError: if the plan has no noise or, for blocks, more than one segment of trees. If
            a number is out of range, settings have no proof together, or the extra is missing.
    """
    expect_a(Plan, plan, "plan", "call privacy.guarantee(fed.plan, delta=1e-6)")
    server, public = _noises(plan)
    reports, clients = _sample_of(sampled)
    rounds = _checked_rounds(plan, delta, rounds)
    limited = plan.max_participations or plan.min_separation > 1
    if (sampled and limited) or (sampled_blocks and plan.noise_taps):
        raise ParameterError(
            "torchfsl cannot prove epsilon for sampled= with participation limits: leave out "
            "sampled="
            if sampled and limited
            else "torchfsl cannot prove epsilon for sampled_blocks= with noise_taps: calibrate "
            "with band=1",
            code="not-accounted",
        )
    if other_plan is not None and (sampled or sampled_blocks):
        raise ParameterError(
            "torchfsl cannot prove epsilon for sampled= or sampled_blocks= with other_plan=: leave "
            "out both of these, or other_plan= (epsilon is then of this task alone)",
            code="not-accounted",
        )
    blocks = _blocks(plan, sampled) if sampled_blocks else None
    count = charged(plan, rounds)
    more = whole_task(other_plan) if other_plan is not None else None
    views = [_epsilon(server, delta, rounds, count, blocks=blocks, more=more),
             _epsilon(public, delta, rounds, count, reports / clients, blocks, more)]  # fmt: skip
    twice = _epsilon(server.times(4), delta, rounds, count, more=more and more.times(4))
    of_all = count if plan.noise_taps else 1
    # What a server's draw hides from its peer it hides from the public as well.
    return Guarantee(
        delta, rounds, sampled, blocks, views[0], min(views), server.times(of_all).renyi,
        max(server.renyi, public.renyi) / math.sqrt(of_all), plan.proofs == "norm", count,
        plan.min_separation, plan.noise_taps, twice,
    )  # fmt: skip


@public
def calibrate(
    plan: Plan,
    *,
    epsilon: float,
    delta: float,
    rounds: int = 0,
    max_participations: int = 0,
    min_separation: int = 1,
    clients: int = 0,
    band: int | None = None,
    lane_share: float = 0.1,
    share: float = 1.0,
    sampled_blocks: bool = False,
    other_plan: Plan | None = None,
) -> Plan:
    """A new plan with noise for (epsilon, delta): write `fed.plan = privacy.calibrate(...)`.

    Args:
        plan: with `l2_bound`.
        epsilon: against either server, for all rounds together, above 0.
        delta: in (0, 1).
        rounds: rounds that will be opened, the new plan's `max_rounds`; 0 takes `plan.max_rounds`.
        max_participations: reports of one client, which alone are charged; 0 for as many as
            `min_separation` allows.
        min_separation: fewest rounds between two reports of a client.
        clients: number of clients, to refuse rounds that they cannot fill; 0 if unknown.
        band: rounds over which noise is correlated; None for `min_separation`, at most 64, and 1
            for independent noise.
        lane_share: the lane's part of the budget, where there is a lane.
        share: the plan's part of the budget; the rest is for a plan that names this `other_plan`.
        sampled_blocks: as of `guarantee`.
        other_plan: as of `guarantee`; it takes a part of epsilon.

    Raises:
        ParameterError: no bound, a number out of range, noise beyond the sampler or the ring, or
            the extra is missing.
    """
    remedy = "call fed.plan = privacy.calibrate(fed.plan, epsilon=8.0, delta=1e-6, rounds=100)"
    expect_a(Plan, plan, "plan", remedy)
    if not plan.l2_bound:
        wish = ("noise needs a bound on updates: give one FixedPoint to Federated(encoding=) and "
                "fed.plan = fed.make_plan(l2_bound=privacy.l2_bound(encoding, 1.0))")  # fmt: skip
        raise ParameterError(wish, code="noise-without-bound")
    _check_ask(epsilon, delta, clients, lane_share, share)
    rounds = _checked_rounds(plan, delta, rounds)
    most, apart = max_participations or plan.max_participations, min_separation
    apart = plan.min_separation if apart == 1 else apart
    if sampled_blocks and band not in (None, 1):
        raise ParameterError(
            f"band is {band}, and sampled_blocks=True has a proof for independent noise only: "
            "leave out band=, or sampled_blocks=",
            code="not-accounted",
        )
    limits, band = limits_of(rounds, most, apart, band)
    count = limits.get("max_participations", rounds)
    if clients:
        check_clients(plan, rounds, count, apart, clients)
    wanted = _wanted(plan, epsilon, delta, rounds, other_plan) * math.sqrt(count / share)
    if sampled_blocks:
        limits["noise_taps"] = ()
        noisy_plan = _least_noise(plan, wanted, epsilon, delta, rounds, limits, other_plan)
        _CALIBRATED.add(plan.digest)
        return noisy_plan
    noisy = functools.partial(
        _with_noise, wanted=wanted, lane_share=lane_share, limits=limits, rounds=rounds, band=band
    )
    try:
        noisy_plan = noisy(plan)
    except ParameterError as error:
        if error.code == "not-accounted":
            raise
        what, ways = str(error).rpartition(": ")[0], encodings_that_pass(plan, noisy)
        ways += ["a larger epsilon", "fewer participations", "or fewer clients"]
        wish = f"{what}: choose one of {', '.join(ways)}"
        raise ParameterError(wish, code="ring-overflow") from error
    _CALIBRATED.add(plan.digest)
    return noisy_plan


def lacks_its_noise(plan: object) -> bool:
    """Whether `calibrate` made a noisy plan of this one, which has none, in this process."""
    return isinstance(plan, Plan) and not plan.noise_sigma and plan.digest in _CALIBRATED


def _with_noise(
    plan: Plan, wanted: float, lane_share: float, limits: dict[str, Any], rounds: int, band: int
) -> Plan:
    """The plan with `wanted` noise over the sensitivity of values and lanes together."""
    share = lane_share if plan.lane_values else 0.0
    values, lanes = _sensitivities(plan)
    parts = [wanted * values / math.sqrt(1 - share), wanted * lanes / math.sqrt(share or 1)]
    taps: tuple[int, ...] = ()
    if band > 1:
        best = correlation.optimise(rounds, band)
        longest = 1.01 * float(np.linalg.norm(best.coefficients))  # before taps are rounded
        taps = best.taps(correlation.fraction_bits(math.ceil(longest * max(parts) + 1)))
    sigmas: dict[str, Any] = {
        name: _sigma(part * correlation.norm(taps), correlation.bits_of(taps)) if part else 0
        for name, part in zip(("noise_sigma", "lane_sigma"), parts, strict=True)
    }
    noisy = dataclasses.replace(plan, noise_taps=taps, **limits, **sigmas)
    return with_headroom(noisy, advises=False)


def _check_ask(epsilon: float, delta: float, clients: int, lane_share: float, share: float) -> None:
    limits = {"epsilon": (epsilon, 1e6), "lane_share": (lane_share, 0.99), "share": (share, 1)}
    for name, (value, most) in limits.items():
        if not is_real(value) or not 0 < value <= most:
            wish = f"{name} is {value!r}: choose a number above 0, at most {most:g}"
            raise ParameterError(wish, code="out-of-range")
    (clients,) = whole_numbers(clients=clients)
    if not is_real(delta) or not 0 < delta < 1:
        raise ParameterError(f"delta is {delta!r}: choose a number in (0, 1), such as 1e-6")
    if clients and delta * clients >= 1:
        raise ParameterError(
            f"delta is {delta:g} with {clients:,} clients: choose a delta below "
            f"{1 / clients:.6g}, because a larger delta allows disclosure of a whole client",
            code="out-of-range",
        )


def _wanted(
    plan: Plan, epsilon: float, delta: float, rounds: int, other_plan: Plan | None
) -> float:
    """Noise over sensitivity of one Gaussian release that is left for the plan."""
    spent = _Noise(math.inf, math.inf, 0.0) if other_plan is None else whole_task(other_plan)
    slack = rounds * sum(_num_values(plan)) * _ROUNDING_SLACK + spent.slack
    if epsilon <= 4 * slack:
        raise ParameterError(
            f"no noise reaches epsilon {epsilon} in {rounds} rounds: choose an epsilon above "
            f"{5 * slack:.2g}", code="epsilon-unreachable")  # fmt: skip
    whole = float(accounting().get_sigma_gaussian(epsilon - 2 * slack, delta * math.exp(-slack)))
    room = whole**-2 - spent.gaussian**-2
    if room <= 0:
        raise ParameterError(
            f"other_plan alone spends epsilon {epsilon}: choose a larger epsilon, or more noise "
            "in other_plan", code="epsilon-unreachable")  # fmt: skip
    return float(room**-0.5)


def _least_noise(
    plan: Plan, most: float, epsilon: float, delta: float, rounds: int, limits: dict[str, Any],
    other_plan: Plan | None,
) -> Plan:  # fmt: skip
    """The plan with the least noise, up to `most` times the sensitivity, that is enough."""
    sensitivity, _ = _sensitivities(plan)
    low, high = 0, _sigma(most * sensitivity)
    while high - low > 1 + high // 1000:
        middle = (low + high) // 2
        noisy = dataclasses.replace(plan, noise_sigma=middle, **limits)
        found = guarantee(
            noisy, delta=delta, rounds=rounds, sampled_blocks=True, other_plan=other_plan
        )
        low, high = (low, middle) if found.epsilon_server <= epsilon else (middle, high)
    return dataclasses.replace(plan, noise_sigma=high, **limits)


def _blocks(plan: Plan, sampled: tuple[int, int] | None) -> tuple[int, int]:
    """Blocks that a client sends, and of how many."""
    segment = plan.segments[0]
    if len(plan.segments) > 1 or segment.is_dense or plan.lane_values or sampled is not None:
        raise ParameterError(
            "sampled_blocks= needs average='clients', no sampled=, and a plan of one segment that "
            "is not dense: leave out sampled_blocks=, or change these three"
        )
    return segment.k_max, segment.m


def _sigma(gaussian: float, bits: int = 0) -> int:
    """The discrete Gaussian that hides as much as a continuous one of this standard deviation.

    Draws lie on multiples of 2**-bits.
    """
    return math.ceil(math.sqrt(gaussian**2 + _ROUNDING_VARIANCE / 4**bits) * (1 + 1e-9))


def _checked_rounds(plan: Plan, delta: float, rounds: int) -> int:
    """The number of rounds to account for."""
    (rounds,) = whole_numbers(rounds=rounds)
    if not rounds and not plan.max_rounds:
        raise ParameterError(
            "the number of rounds is missing: pass rounds=100, or make the plan with "
            "max_rounds=100",
            code="rounds-missing",
        )
    if not is_real(delta) or not 0 < delta < 1 or rounds < 0:
        raise ParameterError(
            f"delta is {delta!r} and rounds is {rounds}: choose delta above 0 and below 1, and "
            "rounds of 1 or more (0 stands for the plan's max_rounds)"
        )
    return rounds or plan.max_rounds


def _sample_of(sampled: object) -> tuple[int, int]:
    """Reports of a round, and the clients that they are drawn from."""
    given = (1, 1) if sampled is None else sampled
    if isinstance(given, tuple | list) and len(given) == 2:
        reports, clients = whole_numbers(reports=given[0], clients=given[1])
        if 1 <= reports <= clients:
            return reports, clients
    raise ParameterError(
        f"sampled is {sampled!r}: pass whole numbers (n, K), for n of K clients in a round, with "
        "n from 1 to K"
    )


def _sensitivities(plan: Plan) -> tuple[float, float]:
    """L2 norms of the most that one client adds to the values and to the lanes, in ring units."""
    counted = sum(s.k_max for s in plan.with_trees)
    counted += sum(plan.dense_values(s) - s.m for s in plan.dense)
    lanes = math.sqrt(counted) * plan.max_weight if plan.lane_values else 0.0
    return float(plan.l2_bound * plan.max_weight), lanes


class _Noise(NamedTuple):
    """Noise over sensitivity in one round; of correlated noise, for one report's whole effect.

    Attributes:
        renyi: of the Gaussian whose Renyi divergences are not below those of the round.
        gaussian: of the Gaussian whose outcomes become the round's by rounding; 0 where there is
            too little noise for this view.
        slack: logarithm of the largest factor by which probabilities then differ.
    """

    renyi: float
    gaussian: float
    slack: float

    def times(self, reports: float) -> _Noise:
        """Of so many reports together; four are one that is twice as far."""
        return _Noise(
            self.renyi / math.sqrt(reports), self.gaussian / math.sqrt(reports), self.slack
        )


def whole_task(plan: Plan) -> _Noise:
    """Noise over sensitivity of all rounds together of a plan with noise and `max_rounds`."""
    expect_a(Plan, plan, "other_plan", "pass the plan of the other task")
    rounds = _checked_rounds(plan, 0.5, 0)
    whole = _noises(plan)[0].times(charged(plan, rounds))
    return whole._replace(slack=rounds * whole.slack)


def _noises(plan: Plan) -> tuple[_Noise, _Noise]:
    """The noise against a server and against the public.

    Whitened by their sigmas, values and lanes together are one Gaussian, whose sensitivity is the
    root of the sum of both squares.
    """
    if not plan.noise_sigma:
        wish = "the plan has no noise, so it has no guarantee: call privacy.calibrate first"
        raise ParameterError(wish, code="no-noise")
    parts = list(
        zip(
            _sensitivities(plan),
            (plan.noise_sigma, plan.lane_sigma),
            _num_values(plan),
            strict=True,
        )
    )
    noises: list[_Noise] = []
    longer, taps = correlation.norm(plan.noise_taps), plan.noise_taps
    for draws in (1, 2):
        if draws == 2 and taps:  # rounded twice, the sums are no function of the sum of both draws
            noises += noises
            break
        renyi = gaussian = slack = 0.0
        for most, sigma, count in parts:
            if not sigma or not most:
                continue
            # The sum of two discrete Gaussians is not one. It is near enough to change every
            # probability by a factor of exp(tau) at most (Kairouz, Liu, Steinke 2021, Prop. 14).
            tau = 10 * math.exp(-((math.pi * sigma) ** 2)) * count if draws == 2 else 0.0
            variance, most = draws * sigma**2, most * longer
            renyi += most**2 / variance + 2 * tau
            left = variance - _ROUNDING_VARIANCE / 4 ** correlation.bits_of(taps)
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
    reports: int,
    rate: float = 1.0,
    blocks: tuple[int, int] | None = None,
    more: _Noise | None = None,
) -> float:
    """Epsilon of so many reports of a client in `rounds`: the least of the bounds that hold."""
    more = more or _Noise(math.inf, math.inf, 0.0)
    renyi = (reports / noise.renyi**2 + more.renyi**-2) ** -0.5
    bounds = [renyi_epsilon(renyi, delta, 1, _ORDERS)]
    slack = rounds * noise.slack + more.slack
    if noise.gaussian and slack < 1:
        rest = delta * math.exp(-slack)
        whole = (reports / noise.gaussian**2 + more.gaussian**-2) ** -0.5
        bounds.append(2 * slack + float(accounting().get_epsilon_gaussian(whole, rest)))
        if rate < 1:
            of_samples = sampled_gaussian.epsilon(noise.gaussian, rest, rounds, rate)
            bounds.append(2 * slack + of_samples)
        if blocks:
            of_blocks = accountant_of_blocks.epsilon(noise.gaussian, rest, reports, *blocks)
            bounds.append(2 * slack + of_blocks)
    return min(bounds)
