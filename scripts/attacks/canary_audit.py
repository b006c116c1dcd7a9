"""An auditor's canaries bound epsilon from below; with less noise than stated they show it.

Every value of one dense segment is a separate canary: in half of them a client of norm `l2_bound`
adds it in each round that the plan allows. The peer adds no noise, so what opens has the draw of
one server, whose own code runs. The auditor applies the strategy to what opened and looks for the
canary's shape. Epsilon follows by counting alone, each rate at 99.95 %. Where epsilon is too large
to count, it is estimated from the means, if both halves are Gaussian of equal variance.

    scripts/reproduce canaries                            # the same, for the page with the proofs
    python -m scripts.attacks.canary_audit                # with every planted fault
    python -m scripts.attacks.canary_audit --honest 20    # 20 seeds of servers without one
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scripts.attacks.result import AttackResult
from scripts.parties import plain_plan, zeros
from scripts.program import Found, Options, option, program
from torchfsl import privacy
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import run_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.norm_bound import MAX_BOUND
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

Whole = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]

ROUNDS, APART, REPORTS, BOUND, DELTA = 32, 4, 4, 1 << 14, 1e-6
CANARIES: Final = 300_000
_RATE: Final = 5e-4
"""Chance that a bound on one rate is wrong."""
_LARGE: Final = 8.0
"""Where so many canaries cannot count further: the estimate decides."""
_THRESHOLDS: Final = (1.5, 2.0, 2.5, 3.0, 3.5)
"""In standard deviations of canaries that were left out."""
_KOLMOGOROV: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Fault:
    """Deviation of a server from the plan.

    Attributes:
        divisor: of the standard deviation of its noise.
        apart: rounds between the canaries' reports.
        bare: share of the values without noise.
        stale: whether one write of its noise is lost after each canary.
    """

    divisor: int = 1
    apart: int = APART
    bare: float = 0.0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit.

    Attributes:
        counted: lower bound on epsilon, by counting.
        estimated: epsilon of Gaussians as far apart as the halves are.
        bare: canaries whose sums opened without noise in all rounds.
        equal: whether both halves are Gaussian of equal variance, as the estimate assumes.
    """

    counted: float
    estimated: float
    bare: int
    equal: bool


FAULTS: Final = {
    "none": Fault(),
    "half the noise": Fault(divisor=2),
    "canaries half as far apart": Fault(apart=APART // 2),
    "one value in a thousand bare": Fault(bare=1e-3),
    "a lost write": Fault(stale=True),
}


def plan_of(epsilon: float, canaries: int = CANARIES) -> Plan:
    """The plan under audit; its canaries together may exceed the bound of one client."""
    segment = TreeSegment("d", "dense", (TensorSpec("d", (canaries,)),), canaries, 1, canaries)
    plan = plain_plan(
        segment, encoding=FixedPoint(64, 0, 2.0 * BOUND), max_clients=2, l2_bound=BOUND
    )
    return privacy.calibrate(
        plan,
        epsilon=epsilon,
        delta=DELTA,
        rounds=ROUNDS,
        max_participations=REPORTS,
        min_separation=APART,
    )


def play(epsilon: float, fault: Fault, seed: int, canaries: int = CANARIES) -> Audit:
    """Play all rounds at the servers' own code, and judge what opened."""
    stated = plan_of(epsilon, canaries)
    plan = dataclasses.replace(stated, l2_bound=MAX_BOUND)
    rng = np.random.default_rng(seed)
    bare = rng.random(canaries) < fault.bare
    inside = rng.random(canaries) < 0.5

    def draw(sigma: int, count: int) -> Whole:
        def words(size: int) -> npt.NDArray[np.uint64]:
            return rng.integers(0, 1 << 64, size, dtype=np.uint64)

        drawn = discrete_gaussian.sample(sigma // fault.divisor, count, words)
        drawn[bare[:count]] = 0
        return drawn

    servers = tuple(
        Server(party, plan=plan, model=ServerModel(zeros(plan)), draw_noise=noise)
        for party, noise in enumerate((draw, lambda _, count: np.zeros(count, np.int64)))
    )
    noise = servers[0].noise
    assert noise is not None
    schedule, lost = shape(fault)
    sums = np.array([BOUND * inside * (t in schedule) for t in range(ROUNDS)], dtype=np.int64)
    opened = np.empty_like(sums)
    for t in range(ROUNDS):
        before = noise.slots[t % APART].copy()
        update = {"d": SegmentUpdate(None, sums[t][:, None])}
        opened[t] = run_round((servers[0], servers[1]), {t: update}, round_number=t).sums["d"][:, 0]
        if t in lost:
            noise.slots[t % APART] = before
    known = strategy(np.array(plan.noise_taps) / plan.noise_taps[0], lost)
    signal = known @ np.array([float(BOUND) * (t in schedule) for t in range(ROUNDS)])
    score = (signal @ known) @ opened / (np.linalg.norm(signal) * plan.noise_sigma)
    return judge(score[inside], score[~inside], int((opened == sums).all(axis=0).sum()))


def shape(fault: Fault) -> tuple[list[int], list[int]]:
    """Rounds of the canaries' reports, and those whose noise is not kept."""
    if not fault.stale:
        return [fault.apart * i for i in range(REPORTS)], []
    # The noise of the canary's round comes back once more in the place of the lost one.
    return [2 * APART * i for i in range(REPORTS)], [APART * (2 * i + 1) for i in range(REPORTS)]


def strategy(coefficients: Float, lost: list[int]) -> Float:
    """The matrix that leaves fresh draws of the noise, of what was opened `[rounds, rounds]`."""
    matrix = np.eye(ROUNDS)
    for t in range(ROUNDS):
        for lag in range(1, min(len(coefficients), t + 1)):
            read = t - lag - APART * (t - lag in lost)
            matrix[t, read] += coefficients[lag]
    return matrix


def judge(inside: Float, outside: Float, bare: int) -> Audit:
    """Judge the scores of both halves."""
    accounting, stats = (importlib.import_module(n) for n in ("dp_accounting", "scipy.stats"))
    middle, spread = float(outside.mean()), float(outside.std())
    counted = 0.0
    for threshold in _THRESHOLDS:
        for low, high in ((outside, inside), (-inside, -outside)):
            edge = threshold * spread + (middle if low is outside else -float(inside.mean()))
            few, many = int((low > edge).sum()), int((high > edge).sum())
            most = float(stats.beta.ppf(1 - _RATE, few + 1, max(len(low) - few, 1)))
            least = float(stats.beta.ppf(_RATE, max(many, 1), len(high) - many + 1))
            if many and least > DELTA:
                counted = max(counted, math.log((least - DELTA) / most))
    apart = float(inside.mean()) - middle
    both = math.sqrt((inside.var() + outside.var()) / 2)
    chance = 5 * math.sqrt(2 / len(inside) + 2 / len(outside))
    equal = abs(inside.var() / outside.var() - 1) < chance and all(
        float(stats.kstest((x - x.mean()) / x.std(), "norm").pvalue) > _KOLMOGOROV
        for x in (inside, outside)
    )
    estimated = float(accounting.get_epsilon_gaussian(both / apart, DELTA))
    return Audit(counted, estimated, bare, bool(equal))


def shows(audit: Audit, epsilon: float) -> bool:
    """Whether the audit contradicts the stated epsilon."""
    estimate = audit.estimated > 1.03 * epsilon and epsilon >= _LARGE  # beyond chance
    return audit.counted > epsilon or audit.bare > 0 or estimate


def canary_audit() -> AttackResult:
    """Epsilon 2 by counting: with half the noise, and with all of it."""
    half, whole = (play(2.0, FAULTS[name], 0) for name in ("half the noise", "none"))
    return AttackResult(
        "canaries against noise",
        off=f"with half the noise: epsilon is at least {half.counted:.2f}, 2 was stated",
        on=f"epsilon is at least {whole.counted:.2f} ({whole.estimated:.2f} estimated) of 2",
        worked_off=shows(half, 2.0),
        worked_on=shows(whole, 2.0),
        cost="the noise itself",
    )


def played(plays: list[tuple[str, float, int]], canaries: int = CANARIES) -> Iterator[Audit]:
    """The audits of faults by name, stated epsilon and seed; printed as they come."""
    print("fault                          stated  counted  estimate  bare  equal Gaussians")
    for name, epsilon, seed in plays:
        audit = play(epsilon, FAULTS[name], seed, canaries)
        print(
            f"{name:30} {epsilon:6.1f}  {audit.counted:7.2f}  {audit.estimated:8.2f}  "
            f"{audit.bare:4d}  {audit.equal}",
            flush=True,
        )
        yield audit


def planted(canaries: int = CANARIES) -> Found:
    """Every fault at epsilon 2 and 8: by fault and stated epsilon what the audit finds."""
    plays = [(name, epsilon, 1) for name in FAULTS for epsilon in (2.0, _LARGE)]
    found: Found = {name: {} for name in FAULTS}
    for (name, epsilon, _), audit in zip(plays, played(plays, canaries), strict=True):
        found[name][f"{epsilon:g}"] = dataclasses.asdict(audit)
    return {"audits": found}


@program(option("--honest", 0, "so many seeds at epsilon 2 without a fault, instead"))
def main(options: Options) -> Found:
    """Every fault at epsilon 2 and 8; fails if one stays unseen, or accuses honest servers."""
    if options.honest:
        plays = [("none", 2.0, seed) for seed in range(options.honest)]
        audits = dict(enumerate(played(plays)))
        seeds = {str(seed): dataclasses.asdict(audit) for seed, audit in audits.items()}
        return {"seeds": seeds, "ok": not any(shows(audit, 2.0) for audit in audits.values())}
    found = planted()
    seen = {
        name: any(shows(Audit(**audit), float(epsilon)) for epsilon, audit in by.items())
        for name, by in found["audits"].items()
    }
    return found | {"ok": all(shown != (name == "none") for name, shown in seen.items())}
