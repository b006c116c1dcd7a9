"""What correlated noise takes one server a round, when its whole past is there.

    python -m scripts.bench.noise [--correlated 3600000] [--taps 22] [--json FILE]

CPU seconds of drawing and of correlating, the memory of past draws, and the further memory of the
round. That noise has the variance asked for is held by `tests/crypto/test_discrete_gaussian.py`
and `tests/fsl/test_privacy.py`.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import numpy.typing as npt

from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.crypto import discrete_gaussian
from torchfsl.submodel.correlated_noise import CorrelatedNoise
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


@measure.benchmark(
    option("--correlated", 3_600_000, "values of a share"),
    option("--taps", 22, "rounds over which the noise is correlated"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    figures |= (found := correlated(options.correlated, options.taps))
    print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))
