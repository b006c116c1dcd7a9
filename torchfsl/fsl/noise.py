"""The noise of one server, on its share of a round's sums, before it commits to it.

Every value of the share, zeros and lanes included, gets a separate draw of the discrete Gaussian
N_Z(0, s**2); `privacy` says what that guarantees.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import discrete_gaussian, kdf
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.correlated_noise import Draw as Draw
from torchfsl.submodel.segments import subset_array
from torchfsl.types import Bytes, Whole

_CHUNK: Final = 1 << 16
"""Values of a draw from a key that share a stream of words."""


def add_noise(
    plan: Plan, segment: TreeSegment, share: Bytes, draw: Draw = discrete_gaussian.sample
) -> Bytes:
    """One server's share of a segment's sums with its noise; the share itself without noise.

    Args:
        plan: gives both standard deviations.
        segment: the segment of the share.
        share: its ring values in order, lanes where the plan has them: `[m, W/8]`, or
            `[values, l/8]` for a dense segment.
        draw: source of the noise; tests pass a known source.

    Returns:
        Shape of `share`. Law: the aggregate is the plain sum plus both servers' draws, exactly.
    """
    if not plan.noise_sigma:
        return share
    ring_bits = plan.encoding_of(segment).ring_bits
    values = share.reshape(-1, ring_bits // 8)
    is_lane = lanes(plan, segment, len(values))
    noise = np.empty(len(values), dtype=np.int64)
    num_lanes = int(np.count_nonzero(is_lane))
    noise[~is_lane] = draw(plan.noise_sigma, len(values) - num_lanes)
    noise[is_lane] = draw(plan.lane_sigma, num_lanes)
    noisy = ring.add(values, ring.from_int64(noise, ring_bits))
    return noisy.reshape(share.shape)


class KeyedNoise:
    """Noise that follows from a key, so that a server can show it again. A `Draw`.

    The values of draw number `i` after `begin`, 2**16 at a time: chunk `j` takes its words from the
    AES-CTR stream under `derive(key, LABEL_NOISE, frame("stream", i, j))`, and each request for
    words begins with a whole block. A share's draws are, by segment in index order, its values and
    then its lanes.
    """

    def __init__(self) -> None:
        """No round yet."""
        self._key, self._number = b"", 0

    def begin(self, key: bytes) -> None:
        """Draw for a share under this key, 16 bytes, from its first value on."""
        self._key, self._number = key, 0

    def __call__(self, sigma: int, count: int) -> Whole:
        """`count` draws of N_Z(0, sigma**2): `int64[count]`."""
        assert self._key, "no round has begun"
        number, noise = self._number, np.empty(count, dtype=np.int64)
        self._number += 1
        for chunk, start in enumerate(range(0, count, _CHUNK)):
            part = noise[start : start + _CHUNK]
            part[:] = discrete_gaussian.sample(sigma, len(part), self._words(number, chunk))
        return noise

    def _words(self, number: int, chunk: int) -> discrete_gaussian.Source:
        places = (place.to_bytes(8, "little") for place in (number, chunk))
        key = kdf.derive(self._key, kdf.LABEL_NOISE, kdf.frame(b"stream", *places))
        first = 0

        def words(count: int) -> discrete_gaussian.Words:
            nonlocal first
            start, first = first, first + -(-count // 2)
            return kdf.stream(key, 8 * count, first=start).view("<u8")

        return words


def lanes(plan: Plan, segment: TreeSegment, count: int) -> npt.NDArray[np.bool_]:
    """Which of a share's values belong to the lane."""
    is_lane = np.zeros(count, dtype=np.bool_)
    if segment.is_dense:
        is_lane[: plan.dense_values(segment) - segment.m] = True
    elif plan.lane_values:
        is_lane[:: segment.tau + plan.lane_values] = True
    return is_lane


def noise_values(plan: Plan) -> int:
    """Values of a share, lanes included."""
    return sum(plan.sum_values(segment) for segment in plan.segments)


def ring_bytes(plan: Plan) -> int:
    """Bytes in which a server keeps past noise, 0 for a plan without correlated noise."""
    return len(plan.noise_taps) * noise_values(plan) * 4


def by_segment(plan: Plan, draws: Draw) -> dict[str, Whole]:
    """By segment what `draws` gives for a whole share, lanes as `NAME/lane`.

    Positions are those of the index space, `int64[index space, tau]`, zeros outside a subset.
    """
    found: dict[str, Whole] = {}
    for segment in (*plan.with_trees, *plan.dense):
        count = plan.sum_values(segment)
        num_lanes = int(np.count_nonzero(lanes(plan, segment, count)))
        values = draws(plan.noise_sigma, count - num_lanes).reshape(-1, segment.tau)
        lane = draws(plan.lane_sigma, num_lanes)
        if segment.subset:
            places, whole = subset_array(segment.subset), (segment.index_space, segment.tau)
            inside, values = values, np.zeros(whole, dtype=np.int64)
            values[places] = inside
            inside, lane = lane, np.zeros(whole[0] if num_lanes else 0, dtype=np.int64)
            lane[places[: len(inside)]] = inside
        found[segment.name], found[f"{segment.name}/lane"] = values, lane
    return found


def taking(parts: list[Whole]) -> Draw:
    """Gives the next values of what was drawn for a share."""
    rest = iter(np.concatenate(parts))
    return lambda _, count: np.fromiter(rest, np.int64, count)


class BothServers:
    """The noise of both servers, for adding in the clear what they would open (`Plain`).

    Args:
        plan: with noise.
        draws: fresh noise of server 0 and of server 1.
    """

    def __init__(
        self,
        plan: Plan,
        draws: tuple[Draw, ...] = (discrete_gaussian.sample, discrete_gaussian.sample),
    ) -> None:
        """No round yet."""
        self._plan, self.sources = plan, draws
        if plan.noise_taps:
            size = noise_values(plan)
            self.sources = tuple(CorrelatedNoise(plan.noise_taps, size, d) for d in draws)

    def __call__(self, index: int) -> dict[str, Whole]:
        """By segment the noise of the round that is opened as number `index`; see `by_segment`."""
        both = []
        for source in self.sources:
            if isinstance(source, CorrelatedNoise):
                source.begin(index)
            both.append(by_segment(self._plan, source))
        return {name: both[0][name] + both[1][name] for name in both[0]}
