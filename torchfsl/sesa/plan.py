"""The public plan of one server and clients of different widths, and what it refuses.

A position of a segment (a row, a block) is a *submodel*: some clients train it, others do not, and
nobody learns which. A dense segment is one submodel that everybody trains. For a segment of K
submodels, `collusion` = T and `dropouts` = D, a round opens from K + T answers, so that
K + T <= N - D must hold for N clients.

What no protocol for sums can hide is a sum with one term. `isolation` says how many submodels a
round leaves with at most one honest contributor; a plan or a round above `max_isolation` is
refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torchfsl.crypto import field
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.plan import SubmodelPlan, expect_ints
from torchfsl.submodel.segments import Segment, SegmentSpec, positions

WIRE_VERSION: Final = 1
SUITE: Final = "sesa-x25519-chacha20poly1305-aes128"
MAX_MESSAGE_BYTES: Final = 1 << 32

LABEL_SEED: Final = b"torchfsl submodel seed"
LABEL_CHANNEL: Final = b"torchfsl submodel channel"
LABEL_SURVIVORS: Final = b"torchfsl survivors"
"""Labels of `kdf` for one server; no other use has them."""

_COUNTS: Final = ("collusion", "dropouts", "wire_version")


@dataclass(frozen=True, slots=True)
class Width:
    """A public class of clients: what each of them trains, and how many of them a round may have.

    Attributes:
        owned: by segment in plan order the submodels that a client of this width trains, the same
            for all of them: 1..k_max, and 1 for a dense segment.
        clients: clients of this width in a full round.
    """

    owned: tuple[int, ...]
    clients: int


@dataclass(frozen=True, slots=True)
class Part:
    """A segment as the code sees it: K submodels of equal size."""

    segment: Segment
    num_submodels: int
    size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SesaPlan(SubmodelPlan):
    """The public plan of one server. Equal plans have equal digests; every message carries it.

    Attributes:
        widths: the classes of clients; together `max_clients`.
        collusion: T, how many clients together, and with the server, learn nothing beyond the sums.
        dropouts: D, how many of a full round may drop out without stopping it.
        max_isolation: most submodels, in expectation, that a round may leave with at most one
            honest contributor, when the T adversaries are those of the largest widths.

    The other attributes are those of `SubmodelPlan`. Lanes, weights and noise are refused: opened
    counts would tell how many chose a submodel, and there is no second server to add noise.
    """

    widths: tuple[Width, ...]
    collusion: int
    dropouts: int = 0
    max_isolation: float = 1e-4
    wire_version: int = WIRE_VERSION
    suite: str = SUITE

    def __post_init__(self) -> None:
        if self.wire_version != WIRE_VERSION or self.suite != SUITE:
            raise ParameterError(
                f"plan of version {self.wire_version} and suite {self.suite!r}, this library has "
                f"{WIRE_VERSION} and {SUITE!r}"
            )
        SubmodelPlan.__post_init__(self)
        expect_ints({name: getattr(self, name) for name in _COUNTS}, _COUNTS)
        if self.lane != "none" or self.max_weight != 1 or self.noise_sigma:
            raise ParameterError("one server opens no lanes, takes no weights and adds no noise")
        if any(segment.subset for segment in self.segments):
            raise ParameterError("submodels are whole positions: a segment here has no subset")
        object.__setattr__(self, "max_isolation", float(self.max_isolation))
        if not 0 <= self.max_isolation < math.inf:
            raise ParameterError(f"max_isolation is {self.max_isolation}; choose 0 or a bit more")
        self._check_widths()
        self._check_limits()
        self._check_isolation([width.clients for width in self.widths], self.dropouts)

    def _check_widths(self) -> None:
        if not self.widths or sum(width.clients for width in self.widths) != self.max_clients:
            raise ParameterError(f"the widths' clients must add up to {self.max_clients}")
        for width in self.widths:
            if type(width.clients) is not int or width.clients < 1:
                raise ParameterError(f"a width has {width.clients!r} clients; give at least 1")
            if len(width.owned) != len(self.segments):
                raise ParameterError(
                    f"a width owns {width.owned}; give one number a segment, "
                    f"{[s.name for s in self.segments]}"
                )
            for segment, owned in zip(self.segments, width.owned, strict=True):
                most = 1 if segment.is_dense else segment.k_max
                if type(owned) is not int or not 1 <= owned <= most:
                    raise ParameterError(
                        f"segment {segment.name!r}: a width owns {owned!r} submodels; choose 1 to "
                        f"{most}"
                    )

    def _check_limits(self) -> None:
        """Refuse what cannot be opened: too many submodels, or sums that leave the field."""
        num_left = self.max_clients - self.dropouts
        if self.collusion < 1 or self.dropouts < 0:
            raise ParameterError("collusion is at least 1 and dropouts are not negative")
        if self.threshold > num_left:
            raise ParameterError(
                f"{self.num_submodels} submodels and {self.collusion} colluding clients need "
                f"{self.num_submodels + self.collusion} answers, {self.max_clients} clients with "
                f"{self.dropouts} dropouts give {num_left}: plan at most "
                f"{max(0, num_left - self.collusion)} submodels a segment, or for less collusion"
            )
        worst = self.max_clients * self.encoding.q_max
        if worst > field.CAPACITY:
            raise ParameterError(
                f"{self.max_clients} clients can reach {worst}, the field ends at "
                f"{field.CAPACITY} (room for {field.CAPACITY // self.encoding.q_max} clients): use "
                "fewer frac_bits or a smaller clip"
            )
        widths = range(len(self.widths))
        values = max(max(self.masked_values(w), self.share_values(w)) for w in widths)
        if field.WORD_BYTES * self.max_clients * (values + 16) > MAX_MESSAGE_BYTES:
            raise ParameterError(
                f"the masked updates, or the shares, of {self.max_clients} clients exceed "
                f"{MAX_MESSAGE_BYTES} bytes: plan for fewer clients or a smaller model"
            )

    def _check_isolation(self, counts: Sequence[int], dropouts: int) -> None:
        found = self.isolation(counts, dropouts)
        if found > self.max_isolation:
            raise ParameterError(
                f"{found:.3g} submodels a round would have at most one honest contributor, whose "
                f"update their sum then is, above max_isolation = {self.max_isolation:g}: plan for "
                "more clients, fewer submodels, wider clients or less collusion"
            )

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The segments as the code sees them, in plan order."""
        return tuple(Part(s, 1, s.m) if s.is_dense else Part(s, s.m, s.tau) for s in self.segments)

    @property
    def num_submodels(self) -> int:
        """K, of the segment that has most."""
        return max(part.num_submodels for part in self.parts)

    @property
    def threshold(self) -> int:
        """Fewest survivors of a round: K + T, and never below `min_clients`."""
        return max(self.num_submodels + self.collusion, self.min_clients)

    @property
    def sum_values(self) -> int:
        """Values of one submodel of every segment, which is the length of an answer."""
        return sum(part.size for part in self.parts)

    @property
    def asked_early(self) -> tuple[Segment, ...]:
        """See `SubmodelPlan`: a client's submodels are coded before it trains."""
        return tuple(segment for segment in self.segments if not segment.is_dense)

    def masked_values(self, width: int) -> int:
        """Values of all submodels that a client of that width trains."""
        owned = self.widths[width].owned
        return sum(n * part.size for n, part in zip(owned, self.parts, strict=True))

    def share_values(self, width: int) -> int:
        """Field elements of one share of such a client: a number a submodel, and the mask's."""
        return sum(self.widths[width].owned) + self.sum_values

    def isolation(self, counts: Sequence[int], dropouts: int = 0) -> float:
        """Expected submodels with at most one honest contributor; see `isolation`.

        Args:
            counts: clients of each width.
            dropouts: how many of them drop out, at random.
        """
        total = 0.0
        for number, part in enumerate(self.parts):
            groups = [
                (count, width.owned[number] / part.num_submodels)
                for count, width in zip(counts, self.widths, strict=True)
            ]
            rate = isolation(groups, collusion=self.collusion, dropouts=dropouts)
            total += part.num_submodels * rate
        return total

    def check_members(self, counts: Sequence[int]) -> None:
        """Check that a round of so many clients of each width may open.

        Raises:
            ProtocolError: too few clients, too many, or too many isolated submodels.
        """
        total = sum(counts)
        if not self.threshold <= total <= self.max_clients:
            raise ProtocolError(
                f"{total} clients, a round of this plan takes {self.threshold} "
                f"({self.num_submodels} submodels + {self.collusion} colluding, and at least "
                f"{self.min_clients}) to {self.max_clients}: nothing is opened"
            )
        try:
            self._check_isolation(counts, 0)
        except ParameterError as error:
            raise ProtocolError(f"nothing is opened: {error}") from error


def isolation(groups: Sequence[tuple[int, float]], *, collusion: int, dropouts: int = 0) -> float:
    """Chance that a submodel gets updates from at most one honest client.

    The adversary is the worst set of `collusion` clients: those most likely to own it. Of the
    others `dropouts` drop out, all sets of them alike; each of the rest owns the submodel
    independently with its group's probability.

    Args:
        groups: clients, and for each the probability that it owns the submodel.
        collusion: adversaries.
        dropouts: honest clients that drop out.
    """
    honest: list[tuple[int, float]] = []
    for count, chance in sorted(groups, key=lambda group: -group[1]):
        caught = min(count, collusion)
        collusion -= caught
        honest.append((count - caught, chance))
    dropouts = min(dropouts, sum(count for count, _ in honest))

    @functools.cache
    def chances(group: int, gone: int) -> tuple[float, float]:
        """No contributor, and exactly one, from that group on, of which `gone` drop out."""
        if group == len(honest):
            return 1.0, 0.0
        count, chance = honest[group]
        rest = sum(n for n, _ in honest[group + 1 :])
        none = one = 0.0
        for missing in range(max(0, gone - rest), min(count, gone) + 1):
            ways = math.comb(count, missing) * math.comb(rest, gone - missing)
            likely = ways / math.comb(count + rest, gone)
            left = count - missing
            here_none = (1 - chance) ** left
            here_one = left * chance * (1 - chance) ** (left - 1) if left else 0.0
            later_none, later_one = chances(group + 1, gone - missing)
            none += likely * here_none * later_none
            one += likely * (here_one * later_none + here_none * later_one)
        return none, one

    return sum(chances(0, dropouts))


def build_plan(
    specs: list[SegmentSpec],
    *,
    encoding: FixedPoint,
    widths: Sequence[Width],
    collusion: int,
    dropouts: int = 0,
    max_isolation: float = 1e-4,
    min_clients: int = 2,
    l2_bound: int = 0,
    session: bytes | None = None,
) -> SesaPlan:
    """Put the plan of one server together.

    Args:
        specs: the segments wanted.
        encoding: fixed-point parameters.
        widths: classes of clients; their clients together are a full round.
        collusion: see `SesaPlan`.
        dropouts: see `SesaPlan`.
        max_isolation: see `SesaPlan`.
        min_clients: fewest survivors a round may open, if K + T is below.
        l2_bound: see `SubmodelPlan`.
        session: 16 bytes; from the operating system when None.

    Raises:
        ParameterError: a limit is exceeded; the message names it.
    """
    segments = []
    for spec in specs:
        m = positions(spec.policy, spec.tensors, spec.tau)
        k_max = m if spec.is_dense else spec.k_max
        segments.append(
            Segment(
                spec.name, spec.policy, spec.tensors, m, spec.tau, k_max,
                retrieve=spec.retrieve, subset=spec.subset,
            )
        )  # fmt: skip
    return SesaPlan(
        session=(random_bytes(16) if session is None else session).hex(),
        encoding=encoding,
        max_clients=sum(width.clients for width in widths),
        min_clients=min_clients,
        segments=tuple(segments),
        widths=tuple(widths),
        collusion=collusion,
        dropouts=dropouts,
        max_isolation=max_isolation,
        l2_bound=l2_bound,
    )
