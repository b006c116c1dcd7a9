"""What correlated noise takes one server a round, when its whole past is there.

    python -m scripts.bench.noise [--correlated 3600000] [--taps 22] [--json FILE]

CPU seconds of drawing and of correlating, the memory of past draws, and the further memory of the
round. Under an audit a server also hashes all past noise on its disk, in each round. That noise has
the variance asked for is held by `tests/crypto/test_discrete_gaussian.py` and
`tests/fsl/test_privacy.py`.
"""

from __future__ import annotations

import dataclasses
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scripts.bench import measure
from scripts.parties import bench_plan
from scripts.program import Found, Options, option
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.service.state.noise_ring import NoiseRing
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.taps import optimise


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


def held_on_disk(values: int, band: int) -> dict[str, float]:
    """CPU seconds in which a server of an audited round hashes the noise that it holds."""
    rest = SegmentSpec("rest", "dense", (TensorSpec("rest", (values,)),))
    plan = bench_plan([rest], encoding=FixedPoint(32, 16, 4.0), max_clients=100, l2_bound=1 << 16)
    taps = optimise(89, band).taps(8)
    noisy = {"noise_sigma": 1 << 16, "noise_taps": taps, "min_separation": band, "max_rounds": 89}
    noise = CorrelatedNoise(taps, values, discrete_gaussian.sample)
    with tempfile.TemporaryDirectory() as folder:
        ring = NoiseRing(Path(folder), dataclasses.replace(plan, **noisy))
        ring.attach(noise, b"{}")
        noise.slots[...] = 1
        noise.held = list(range(band))
        for index in range(band):
            ring.keep(noise, index)
        start = time.process_time()
        assert not ring.forget_damaged(noise)
        return {"hash_seconds": time.process_time() - start}


@measure.benchmark(
    option("--correlated", 3_600_000, "values of a share"),
    option("--taps", 22, "rounds over which the noise is correlated"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    sizes = options.correlated, options.taps
    figures |= (found := correlated(*sizes) | held_on_disk(*sizes))
    print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))
