"""Fixed-point encoding of real values into the ring of integers modulo 2**l.

q = clip(round(x * 2**frac_bits), +-q_max), q_max = floor(clip * 2**frac_bits). A plan is refused
when `max_clients * max_weight * q_max` could reach 2**(l-1), so no sum of honest reports wraps.
The sum of quantised values is exact; only quantisation loses anything, and that loss is returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import ParameterError, refuse, whole_numbers
from torchfsl.faces import public
from torchfsl.kernels import ring

Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True, slots=True)
class ClipReport:
    """What clipping did to one array, or to all of an update.

    Attributes:
        num_values: how many.
        num_clipped: of these, beyond the clip.
        largest: magnitude that came in.
        norm_kept: share of the norm that `l2_bound` has left, after the clip; 1 within it. What
            `BlockSample` has cut of its blocks before is not in it.
    """

    num_values: int
    num_clipped: int
    largest: float
    norm_kept: float = 1.0

    def merge(self, other: ClipReport) -> ClipReport:
        """Both reports as one."""
        return ClipReport(
            self.num_values + other.num_values,
            self.num_clipped + other.num_clipped,
            max(self.largest, other.largest),
            min(self.norm_kept, other.norm_kept),
        )


@public
@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Public encoding parameters; part of the plan.

    Args:
        ring_bits: l, one of 16, 24, 32, 48, 64, 128.
        frac_bits: binary digits after the point, 0..52.
        clip: largest magnitude kept, > 0 and below 2**63.
        rounding: `nearest` (ties to even) or `stochastic` (unbiased; needs a key when quantising).

    Raises:
        ParameterError: a field is not a number or out of range, or one client's largest value does
            not fit.
    """

    ring_bits: int = 32
    frac_bits: int = 16
    clip: float = 4.0
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        ring_bits, frac_bits = whole_numbers(ring_bits=self.ring_bits, frac_bits=self.frac_bits)
        object.__setattr__(self, "ring_bits", ring_bits)
        object.__setattr__(self, "frac_bits", frac_bits)
        ring.ring_bytes(self.ring_bits)
        if isinstance(self.clip, bool) or not isinstance(self.clip, Real):
            refuse(
                "clip", self.clip, "pass a number, the largest magnitude that the encoding keeps"
            )
        if not 0 <= self.frac_bits <= 52:
            raise ParameterError(f"frac_bits is {self.frac_bits}: choose 0 to 52 bits")
        if not 0 < self.clip < 1 << 63:
            raise ParameterError(f"clip is {self.clip}: choose a number above 0 and below 2**63")
        object.__setattr__(self, "clip", float(self.clip))  # 4 and 4.0 are one encoding
        if self.rounding not in ("nearest", "stochastic"):
            raise ParameterError(f"rounding is {self.rounding!r}: choose 'nearest' or 'stochastic'")
        if self.q_max < 1:
            raise ParameterError(
                f"clip is {self.clip:g}, less than one step of frac_bits={self.frac_bits}, so "
                f"every value rounds to 0: choose a clip of {2.0 ** (-self.frac_bits):g} or more"
            )
        self.check_headroom(1, 1)

    @classmethod
    def filling(
        cls,
        ring_bits: int,
        frac_bits: int,
        *,
        max_clients: int,
        max_weight: int = 1,
        noise: int = 0,
        rounding: Rounding = "nearest",
    ) -> FixedPoint:
        """The encoding of the largest clip at which no sum can wrap, so that no bit is idle.

        Args:
            ring_bits: see `FixedPoint`.
            frac_bits: see there; one more halves the rounding error and the clip.
            max_clients: most reports of a round.
            max_weight: largest weight of a client.
            noise: most that both servers' noise adds, see `SubmodelPlan.noise_sigma`.
            rounding: see `FixedPoint`.

        Raises:
            ParameterError: not even one unit a client has room.
        """
        _check_cohort(max_clients, max_weight, noise)
        capacity = (1 << (8 * min(ring.ring_bytes(ring_bits), 8) - 1)) - 1
        most = min((capacity - noise) // (max_clients * max_weight), 1 << 52)
        if most < 1:
            raise ParameterError(
                f"a ring of {ring_bits} bits is too small for {max_clients} clients of weight up "
                f"to {max_weight} and noise up to {noise}: "
                f"{_wider(max_clients * max_weight + noise)}",
                code="ring-overflow",
            )
        return cls(ring_bits, frac_bits, math.ldexp(most, -frac_bits), rounding)

    @classmethod
    def finest(
        cls,
        ring_bits: int,
        clip: float,
        *,
        max_clients: int,
        max_weight: int = 1,
        noise: int = 0,
        rounding: Rounding = "nearest",
    ) -> FixedPoint:
        """The encoding of most fraction bits that keeps values up to `clip`.

        The clip that it has is up to twice the one asked for.

        Args:
            ring_bits: see `FixedPoint`.
            clip: largest magnitude that is kept, above 0 and below 2**63.
            max_clients: most reports of a round.
            max_weight: largest weight of a client.
            noise: most that both servers' noise adds, see `SubmodelPlan.noise_sigma`.
            rounding: see `FixedPoint`.

        Raises:
            ParameterError: if `clip` is out of range, or the ring has no room for such values of so
                many clients.
        """
        _check_cohort(max_clients, max_weight, noise)
        cohort = max_clients * max_weight
        capacity = (1 << (8 * min(ring.ring_bytes(ring_bits), 8) - 1)) - 1
        if not 0 < clip < 1 << 63:
            raise ParameterError(f"clip is {clip}: choose a number above 0 and below 2**63")
        for frac_bits in range(52, -1, -1):
            if cohort * math.ceil(math.ldexp(clip, frac_bits)) + noise <= capacity:
                cohorts = {"max_clients": max_clients, "max_weight": max_weight, "noise": noise}
                return cls.filling(ring_bits, frac_bits, rounding=rounding, **cohorts)
        raise ParameterError(
            f"a ring of {ring_bits} bits is too small for values up to {clip} from {max_clients} "
            f"clients of weight up to {max_weight}, with noise up to {noise}: "
            f"{_wider(cohort * math.ceil(clip) + noise)} or a smaller clip",
            code="ring-overflow",
        )

    @property
    def q_max(self) -> int:
        """Largest quantised magnitude of one value of one client."""
        return math.floor(math.ldexp(self.clip, self.frac_bits))

    @property
    def capacity(self) -> int:
        """Largest magnitude a sum may reach: 2**(l-1) - 1, and at most 2**63 - 1."""
        return (1 << (min(self.ring_bits, 64) - 1)) - 1

    def check_headroom(self, max_clients: int, max_weight: int) -> None:
        """Refuse parameters under which a sum of honest reports could wrap.

        Raises:
            ParameterError: `max_clients * max_weight * q_max` exceeds the ring's capacity.
        """
        worst = max_clients * max_weight * self.q_max
        if worst > self.capacity:
            raise ParameterError(
                f"the sum of {max_clients} clients of weight up to {max_weight} can reach "
                f"{worst}, above the {self.ring_bits}-bit ring's limit {self.capacity}: "
                + " or ".join(self._that_fit(max_clients, max_weight)),
                code="ring-overflow",
            )

    def _that_fit(self, max_clients: int, max_weight: int) -> list[str]:
        """By argument the value next to this encoding's under which no sum can wrap."""
        cohort = max_clients * max_weight
        most = self.capacity // cohort
        fewer = [b for b in range(self.frac_bits) if 1 <= math.floor(self.clip * 2**b) <= most]
        ways = [_wider(cohort * self.q_max)]
        ways += [f"frac_bits={bits}" for bits in fewer[-1:]]
        ways += [f"clip={math.ldexp(most, -self.frac_bits)}"] * (most > 0)
        clients = self.capacity // (max_weight * self.q_max)
        ways += [f"max_clients={clients}"] * (clients > 1)
        weight = self.capacity // (max_clients * self.q_max)
        ways += [f"max_weight={weight}"] * (max_weight > weight > 0)
        return ways

    def quantise(
        self, values: npt.ArrayLike, *, rounding_key: bytes | None = None
    ) -> tuple[npt.NDArray[np.int64], ClipReport]:
        """Real values to integers in [-q_max, q_max], same shape.

        Args:
            values: finite reals; float32 and float64 are handled exactly.
            rounding_key: 16 bytes, used once; wanted exactly when `rounding` is `stochastic`.

        Returns:
            int64 in [-q_max, q_max], same shape, and what was clipped.

        Raises:
            ParameterError: if a value is NaN or infinite, or the key is missing or superfluous.
        """
        reals = np.asarray(values, dtype=np.float64)
        largest = float(np.abs(reals).max(initial=0.0))  # NaN if any value is
        if not math.isfinite(largest):
            bad = int(reals.size - np.count_nonzero(np.isfinite(reals)))
            raise ParameterError(
                f"{bad} of {reals.size} values of the update are NaN or infinite: lower the "
                "learning rate or clip gradients",
                code="value-not-finite",
            )
        if (rounding_key is not None) != (self.rounding == "stochastic"):
            raise ParameterError(
                "rounding='nearest' takes no random bytes: leave out rounding_seed= or "
                "rounding_key="
                if self.rounding == "nearest"
                else "rounding='stochastic' needs random bytes: pass rounding_seed= or "
                "rounding_key="
            )
        num_clipped = 0
        if largest > self.clip:
            num_clipped = int(np.count_nonzero(np.abs(reals) > self.clip))
            reals = reals.clip(-self.clip, self.clip)
        scaled = reals * 2.0**self.frac_bits  # exact, as a shift
        if rounding_key is None:
            rounded = np.rint(scaled)
        else:
            words = kdf.stream(rounding_key, 4 * reals.size).view("<u4").reshape(reals.shape)
            rounded = np.floor(scaled + words.astype(np.float64) * 2.0**-32)
        limit = self.q_max
        whole = rounded.astype(np.int64).clip(-limit, limit)
        return whole, ClipReport(reals.size, num_clipped, largest)

    def dequantise(self, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Integers (single values or sums) back to reals: whole * 2**-frac_bits."""
        return whole.astype(np.float64) * 2.0**-self.frac_bits


def _wider(total: int) -> str:
    """The remedy for sums up to `total`: the narrowest ring, or fewer clients if none has room."""
    rings = [bits for bits in ring.RING_BITS if total < 1 << (min(bits, 64) - 1)]
    return f"use ring_bits={rings[0]}" if rings else "use fewer clients"


def _check_cohort(max_clients: int, max_weight: int, noise: int) -> None:
    """Refuse numbers that no plan has."""
    limits = (("max_clients", max_clients, 1), ("max_weight", max_weight, 1), ("noise", noise, 0))
    for name, value, least in limits:
        if type(value) is not int or value < least:
            raise ParameterError(f"{name} is {value!r}: choose a whole number of {least} or more")
