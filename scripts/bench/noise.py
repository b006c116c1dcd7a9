"""Noise as asked for and noise as measured: variance, distribution, epsilon, speed.

    python -m scripts.bench.noise [--epsilon 2] [--delta 1e-6] [--rounds 100] [--json FILE]
    python -m scripts.bench.noise --correlated 3600000 [--taps 22]

Calibrates a plan to an epsilon against either server, runs a round under it, and prints the
variance of what the round opened beside twice the squared sigma, the accountant's epsilon beside
the one asked for, and the sampler's moments beside the exact ones. Needs `torchfsl[privacy]`.
With `--correlated` it measures one server's correlated noise alone.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.bench import measure
from scripts.parties import bench_plan, two_servers
from scripts.program import Found, Options, option
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import privacy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import run_round
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.norm_bound import norm_squared
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.taps import optimise
from torchfsl.submodel.update import RawSegment, Update, quantise

CLIENTS = 5


def make_plan(options: Options) -> Plan:
    """A dense segment of so many values, single values with trees, a count lane, noise."""
    specs = [
        SegmentSpec("dense", "dense", (TensorSpec("dense", (options.values,)),)),
        SegmentSpec("scalars", "scalars", (TensorSpec("scalars", (5000,)),), k_max=64),
    ]
    encoding = FixedPoint(ring_bits=48, frac_bits=16, clip=4.0, rounding="stochastic")
    plan = bench_plan(
        specs,
        encoding=encoding,
        max_clients=CLIENTS,
        lane="count",
        l2_bound=privacy.l2_bound(encoding, options.norm),
        proofs="none",
    )
    return privacy.calibrate(
        plan, epsilon=options.epsilon, delta=options.delta, rounds=options.rounds
    )


def sampler(count: int) -> list[dict[str, Any]]:
    """Moments of the sampler beside the exact ones, and draws a second."""
    rows = []
    for sigma in (1, 2, 10, 1000, 1 << 20, (1 << 31) - 1):
        start = time.perf_counter()
        draws = discrete_gaussian.sample(sigma, count)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "sigma": sigma,
                "variance": float((draws.astype(float) ** 2).mean()),
                "exact_variance": _exact_variance(sigma),
                "tolerance": _exact_variance(sigma) * 5 * math.sqrt(2 / count),
                "draws_per_second": count / seconds,
            }
        )
    return rows


def _exact_variance(sigma: int) -> float:
    if sigma > 100:
        return float(sigma) ** 2  # the difference is below 1e-1000
    weights = {
        y: math.exp(-y * y / (2 * sigma * sigma)) for y in range(-40 * sigma, 40 * sigma + 1)
    }
    return math.fsum(w * y * y for y, w in weights.items()) / math.fsum(weights.values())


def noisy_round(plan: Plan) -> dict[str, Any]:
    """A round under the plan: variance of opened minus plain sums, and norms of the updates."""
    rng = np.random.default_rng(0)
    made: dict[int, Update] = {}
    for client in range(CLIENTS):
        raw = {
            s.name: RawSegment(
                None if s.is_dense else np.arange(s.k_max), rng.normal(size=(s.k_max, s.tau))
            )
            for s in plan.segments
        }
        made[client] = quantise(plan, raw, rounding_seed=rng.bytes(16))[0]
    opened = run_round(two_servers(plan), made, round_number=0)
    noise, lanes = [], []
    for segment in plan.segments:
        total = np.zeros_like(opened.sums[segment.name])
        count = np.zeros(segment.m, dtype=np.int64)
        for update in made.values():
            part = update[segment.name]
            rows = np.arange(segment.m) if part.indices is None else part.indices
            total[rows] += part.values
            count[rows] += 1
        noise.append((opened.sums[segment.name] - total).reshape(-1))
        if segment.name in opened.lanes:
            lanes.append(opened.lanes[segment.name] - count)
    norms = [norm_squared({n: p.values for n, p in u.items()}) for u in made.values()]
    return {
        "values": sum(map(len, noise)),
        "variance": float((np.concatenate(noise).astype(float) ** 2).mean()),
        "requested_variance": 2.0 * plan.noise_sigma**2,
        "lane_values": sum(map(len, lanes)),
        "lane_variance": float((np.concatenate(lanes).astype(float) ** 2).mean()),
        "requested_lane_variance": 2.0 * plan.lane_sigma**2,
        "largest_norm": math.sqrt(max(norms)),
        "norm_bound": plan.l2_bound,
    }


def correlated(values: int, band: int) -> dict[str, float]:
    """CPU seconds and memory of one server for a round of noise whose whole past is there."""
    fresh = 0.0

    def draw(sigma: int, count: int) -> npt.NDArray[np.int64]:
        nonlocal fresh
        start = time.process_time()
        drawn = discrete_gaussian.sample(sigma, count)
        fresh += time.process_time() - start
        return drawn

    taps = optimise(89, band).taps(8)
    noise = CorrelatedNoise(taps, values, draw)
    noise.slots[...] = 1
    noise.held = list(range(band))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    noise.begin(band)
    noise(1 << 16, values)
    spent = time.process_time() - start
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "draw_seconds": fresh,
        "correlate_seconds": spent - fresh,
        "ring_mb": noise.slots.nbytes / 1e6,
        "more_memory_mb": more * 1024 / 1e6,
    }


def show(figures: dict[str, Any]) -> None:
    """The tables."""
    print(f"{'sigma':>12}{'variance / exact':>20}{'within':>12}{'draws a second':>18}")
    for row in figures["sampler"]:
        ratio, tolerance = row["variance"] / row["exact_variance"], row["tolerance"]
        within = tolerance / row["exact_variance"]
        print(f"{row['sigma']:>12}{ratio:>20.5f}{within:>12.5f}{row['draws_per_second']:>18,.0f}")
    one, stated, options = figures["round"], figures["guarantee"], figures["settings"]
    print(f"\n{'':36}{'measured':>16}{'requested':>16}")
    for label, measured, requested in (
        ("variance of opened noise", one["variance"], one["requested_variance"]),
        ("variance of the lane's noise", one["lane_variance"], one["requested_lane_variance"]),
        ("largest norm of an update", one["largest_norm"], float(one["norm_bound"])),
        ("epsilon against a server", stated["epsilon_server"], options["epsilon"]),
        ("epsilon against the public", stated["epsilon_public"], options["epsilon"]),
    ):
        print(f"{label:36}{measured:>16,.6g}{requested:>16,.6g}")
    sigmas = figures["noise_sigma"], figures["lane_sigma"]
    print(
        f"\nsigma {sigmas[0]} a server and value, {sigmas[1]} in the lane, ring units; delta "
        f"{options['delta']:g}, {options['rounds']} rounds, every client in every round"
    )


@measure.benchmark(
    option("--epsilon", 2.0, "wanted against either server"),
    option("--delta", 1e-6, "delta of that epsilon"),
    option("--rounds", 100, "rounds that are opened"),
    option("--norm", 1.0, "L2 norm bound of a real update"),
    option("--values", 200_000, "dense values of the round"),
    option("--draws", 1 << 21, "draws a sigma"),
    option("--correlated", 0, "values of a share: measure correlated noise alone"),
    option("--taps", 22, "rounds over which that noise is correlated"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    if options.correlated:
        figures |= (found := correlated(options.correlated, options.taps))
        print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))
        return
    plan = make_plan(options)
    stated = privacy.guarantee(plan, delta=options.delta, rounds=options.rounds)
    figures |= {"noise_sigma": plan.noise_sigma, "lane_sigma": plan.lane_sigma}
    figures |= {"sampler": sampler(options.draws), "round": noisy_round(plan)}
    figures["guarantee"] = dataclasses.asdict(stated)
    show(figures)
