"""The public plan of one server and clients of different widths, with its checks.

A position of a segment (a row, a block) is a *submodel*. Some clients train it, others do not, and
no party learns which clients do. A dense segment is one submodel, which all clients train. For a
segment of K submodels, `collusion` = T and `dropouts` = D, a round opens from K + T answers. So
K + T <= N - D must hold for N clients.

No protocol for sums can hide a sum with one term. `isolation` is the expected number of submodels
that a round leaves with at most one honest contributor. A plan or a round above `max_isolation`
raises an error. `planner.build_plan` makes a plan; `SesaPlan.from_json` reads one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchfsl.crypto import field
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sesa.isolated import isolation
from torchfsl.submodel.framing import MAX_MESSAGE_BYTES
from torchfsl.submodel.plan import SubmodelPlan, check_plain, check_suite
from torchfsl.submodel.plan_fields import expect_ints
from torchfsl.submodel.plan_json import read_plan
from torchfsl.submodel.segments import Segment

WIRE_VERSION: Final = 1
SUITE: Final = "sesa-x25519-chacha20poly1305-aes128"

LABEL_SEED: Final = b"torchfsl submodel seed"
LABEL_CHANNEL: Final = b"torchfsl submodel channel"
LABEL_SURVIVORS: Final = b"torchfsl survivors"
"""Labels of `kdf` for one server; no other use has them."""

_COUNTS: Final = ("collusion", "dropouts", "wire_version")


@dataclass(frozen=True, slots=True)
class Width:
    """A public class of clients: what each of them trains, and how many a round may have.

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SesaPlan(SubmodelPlan):
    """The public plan of one server. Equal plans have equal digests; every message carries it.

    Attributes:
        widths: the classes of clients; together `max_clients`.
        collusion: T, how many clients together, and with the server, learn nothing beyond the sums.
        dropouts: D, how many of a full round may drop out without stopping it.
        max_isolation: most submodels, in expectation, that a round may leave with at most one
            honest contributor, when the T adversaries are those of the largest widths. Below the
            number of all submodels, see `counts_on_owners`, each client has to change every
            submodel that its width owns.

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
        check_suite(self, WIRE_VERSION, SUITE)
        SubmodelPlan.__post_init__(self)
        expect_ints({name: getattr(self, name) for name in _COUNTS}, _COUNTS)
        if self.lane != "none" or self.max_weight != 1 or self.noise_sigma:
            raise ParameterError(
                "sesa does not support counts, weights or noise: use lane='none', max_weight=1 "
                "and noise_sigma=0, or the protocol fsl",
                code="unsupported-plan",
            )
        check_plain(self, "sesa sums all values in one field")
        if any(segment.subset for segment in self.segments):
            raise ParameterError(
                "a segment has a subset of rows, which sesa does not support: leave out the "
                "subset, or use the protocol fsl",
                code="unsupported-plan",
            )
        object.__setattr__(self, "max_isolation", float(self.max_isolation))
        if not 0 <= self.max_isolation < math.inf:
            raise ParameterError(
                f"max_isolation is {self.max_isolation}: choose a finite number of submodels, 0 "
                "or more"
            )
        self._check_widths()
        self._check_limits()
        self._check_isolation([width.clients for width in self.widths], self.dropouts)

    def _check_widths(self) -> None:
        if not self.widths or sum(width.clients for width in self.widths) != self.max_clients:
            raise ParameterError(
                f"expected widths whose clients add up to max_clients = {self.max_clients}: "
                "correct the clients of each width"
            )
        for width in self.widths:
            if type(width.clients) is not int or width.clients < 1:
                raise ParameterError(
                    f"a width has {width.clients!r} clients: choose a whole number of 1 or more"
                )
            if len(width.owned) != len(self.segments):
                raise ParameterError(
                    f"a width has owned = {width.owned}: pass one number per segment, in the "
                    f"order {[s.name for s in self.segments]}"
                )
            for segment, owned in zip(self.segments, width.owned, strict=True):
                most = 1 if segment.is_dense else segment.k_max
                if type(owned) is not int or not 1 <= owned <= most:
                    raise ParameterError(
                        f"segment {segment.name!r}: a width trains {owned!r} submodels: choose a "
                        f"whole number from 1 to {most}"
                    )

    def _check_limits(self) -> None:
        """Refuse what cannot be opened: too many submodels, or sums that leave the field."""
        num_left = self.max_clients - self.dropouts
        if self.collusion < 1 or self.dropouts < 0:
            raise ParameterError(
                f"collusion is {self.collusion} and dropouts is {self.dropouts}: choose collusion "
                "of 1 or more, and dropouts of 0 or more"
            )
        if self.threshold > num_left:
            raise ParameterError(self._too_few(num_left))
        worst = self.max_clients * self.encoding.q_max
        if worst > field.CAPACITY:
            raise ParameterError(
                f"a sum of {self.max_clients} clients can reach {worst}, above the field's limit "
                f"{field.CAPACITY} (room for {field.CAPACITY // self.encoding.q_max} clients): "
                "use fewer frac_bits or a smaller clip",
                code="ring-overflow",
            )
        widths = range(len(self.widths))
        values = max(max(self.masked_values(w), self.share_values(w)) for w in widths)
        if field.WORD_BYTES * self.max_clients * (values + 16) > MAX_MESSAGE_BYTES:
            raise ParameterError(
                f"the masked updates or the shares of {self.max_clients} clients exceed "
                f"{MAX_MESSAGE_BYTES} bytes: plan for fewer clients, or use a smaller model",
                code="message-too-large",
            )

    def _too_few(self, num_left: int) -> str:
        """Why a round with so many survivors cannot be opened, and what would help."""
        needed = self.num_submodels + self.collusion
        given = f"{self.max_clients} clients minus {self.dropouts} dropouts leave {num_left}"
        if self.min_clients > needed:
            return (
                f"min_clients is {self.min_clients}, but {given}: lower min_clients, or plan for "
                "fewer dropouts"
            )
        remedies = ["for less collusion or more clients"]
        if self.max_clients > self.threshold:
            remedies.insert(0, f"for at most {self.max_clients - self.threshold} dropouts")
        if num_left > self.collusion:
            remedies.insert(0, f"at most {num_left - self.collusion} submodels a segment")
        return (
            f"{self.num_submodels} submodels and {self.collusion} colluding clients need {needed} "
            f"answers, but {given}: plan {', or '.join(remedies)}"
        )

    def _check_isolation(self, counts: Sequence[int], dropouts: int) -> None:
        isolated = self.isolation(counts, dropouts)
        if isolated > self.max_isolation:
            lost = f" and {dropouts} dropouts" if dropouts else ""
            fewer = ", fewer dropouts" if dropouts else ""
            raise ParameterError(
                f"with {sum(counts)} clients{lost}, {isolated:.3g} submodels per round have at "
                f"most one honest contributor, above max_isolation = {self.max_isolation:g}: plan "
                f"for more clients{fewer}, fewer submodels, wider clients or less collusion"
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
        """Field elements of a share of a client of class `width`, those of the mask included."""
        return sum(self.widths[width].owned) + self.sum_values

    @property
    def counts_on_owners(self) -> bool:
        """Whether the plan's limit holds only if every owner of a submodel contributes to it."""
        return self.max_isolation < sum(part.num_submodels for part in self.parts)

    def isolation(self, counts: Sequence[int], dropouts: int = 0) -> float:
        """Expected submodels with at most one honest contributor; see `isolation`.

        Owners are counted as contributors; clients see to it that they are.

        Args:
            counts: clients of each width.
            dropouts: how many of them drop out, at random.

        Raises:
            ParameterError: not one number for each width.
        """
        if len(counts) != len(self.widths):
            raise ParameterError(
                f"counts has {len(counts)} numbers, expected {len(self.widths)}: pass the number "
                "of clients of each width",
                code="wrong-shape",
            )
        total = 0.0
        for number, part in enumerate(self.parts):
            groups = [
                (count, width.owned[number] / part.num_submodels)
                for count, width in zip(counts, self.widths, strict=True)
            ]
            rate = isolation(groups, collusion=self.collusion, dropouts=dropouts)
            total += part.num_submodels * rate
        return total

    def refusal(self, dropouts: int) -> float:
        """Chance that a full round is refused for those that are left after random dropouts.

        The plan is checked for the mean over dropouts, a round for its survivors. The adversary may
        be the widest of them, so a plan may pass whose rounds are often refused.
        """
        counts = [width.clients for width in self.widths]
        refused = 0.0
        for gone in itertools.product(*(range(min(n, dropouts) + 1) for n in counts)):
            if sum(gone) == dropouts:
                left = [n - g for n, g in zip(counts, gone, strict=True)]
                try:
                    self.check_members(left)
                except ProtocolError:
                    ways = math.prod(math.comb(n, g) for n, g in zip(counts, gone, strict=True))
                    refused += ways / math.comb(self.max_clients, dropouts)
        return refused

    def check_members(self, counts: Sequence[int]) -> None:
        """Check that a round of so many clients of each width may open.

        Args:
            counts: clients of each width.

        Raises:
            ProtocolError: if there are too few clients, too many, or too many isolated submodels.
        """
        total = sum(counts)
        if not self.threshold <= total <= self.max_clients:
            raise ProtocolError(
                f"the round has {total} clients, expected {self.threshold} to {self.max_clients}, "
                f"so no sum is opened. The minimum comes from {self.num_submodels} submodels, "
                f"{self.collusion} colluding clients and min_clients = {self.min_clients}",
                code="too-few-reports",
            )
        try:
            self._check_isolation(counts, 0)
        except ParameterError as error:
            raise ProtocolError(f"the server does not open the sum: {error}") from error

    def describe(self) -> dict[str, str]:
        """See `SubmodelPlan`."""
        return {
            "verification": "none",
            "retrieval": "none: every client downloads the whole model",
            "collusion": f"at most {self.collusion} of {self.max_clients} clients",
            "dropouts": f"planned for {self.dropouts}",
        }

    @classmethod
    def from_json(cls, text: str | bytes) -> SesaPlan:
        """Read `text`, a peer's plan or one's own of an earlier run; everything is validated.

        Returns:
            The plan.

        Raises:
            DecodeError: if it is not canonical JSON of a valid plan.
        """
        return read_plan(cls, text, own=_own_fields)


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    widths = (Width(tuple(raw["owned"]), raw["clients"]) for raw in fields["widths"])
    return {"widths": tuple(widths)}
