"""The clients of one round: who is in it, at which point of the code, and who gets a seed."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.sesa.sesa_plan import SesaPlan

KEY_BYTES: Final = 32
MEMBER: Final = struct.Struct("<QI32s")


@dataclass(frozen=True, slots=True)
class Member:
    """A client in a round: its number, its width's number, its X25519 key of this round."""

    client: int
    width: int
    key: bytes


@dataclass(frozen=True)
class Cohort:
    """The members of a round in rising order of number; a *place* is an index into them.

    The polynomial of a segment of K submodels has the submodels' values at 1..K. Member i holds its
    value at K_max + 1 + i. All points differ for every segment.
    """

    plan: SesaPlan
    members: tuple[Member, ...]

    def __len__(self) -> int:
        return len(self.members)

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """By client its place."""
        return {member.client: place for place, member in enumerate(self.members)}

    def width(self, place: int) -> int:
        """Number of the width of the member at `place`."""
        return self.members[place].width

    def point(self, place: int) -> int:
        """The point at which the polynomials are evaluated for the member at `place`."""
        return self.plan.num_submodels + 1 + place

    def seeded(self, sender: int) -> tuple[int, ...]:
        """Places whose shares from `sender` are streams of seeds: the T after it, cyclically."""
        count = len(self.members)
        return tuple((sender + 1 + n) % count for n in range(self.plan.collusion))

    def evaluated(self, sender: int) -> tuple[int, ...]:
        """Places whose shares from `sender` are evaluations: all others, itself among them."""
        streams = set(self.seeded(sender))
        return tuple(place for place in range(len(self.members)) if place not in streams)

    def counts(self, places: Iterable[int] | None = None) -> list[int]:
        """Members of each width, of all or of those places."""
        counts = [0] * len(self.plan.widths)
        for place in range(len(self.members)) if places is None else places:
            counts[self.width(place)] += 1
        return counts

    def encode(self) -> bytes:
        """The body of a COHORT message."""
        return b"".join(MEMBER.pack(m.client, m.width, m.key) for m in self.members)

    @classmethod
    def decode(cls, plan: SesaPlan, body: bytes | memoryview) -> Cohort:
        """Inverse of `encode`, for a client that gets it from the server.

        Raises:
            DecodeError: not in rising order, or of an unknown width.
            ProtocolError: the plan does not allow a round of these.
        """
        return cls.checked(plan, [Member(*entry) for entry in MEMBER.iter_unpack(body)])

    @classmethod
    def checked(cls, plan: SesaPlan, members: Sequence[Member]) -> Cohort:
        """A cohort that the plan allows; see `decode`."""
        numbers = [member.client for member in members]
        if any(a >= b for a, b in itertools.pairwise(numbers)):
            raise DecodeError(
                "the server sent the clients of the cohort out of order: sort them by number"
            )
        if any(member.width >= len(plan.widths) for member in members):
            raise DecodeError(
                "the cohort from the server has a client with a width that the plan does not list"
            )
        cohort = cls(plan, tuple(members))
        plan.check_members(cohort.counts())
        return cohort


def check_survivors(cohort: Cohort, places: Sequence[int]) -> None:
    """Check that the sums over these members may be opened.

    Raises:
        ProtocolError: too few, or too many isolated submodels among them.
    """
    try:
        cohort.plan.check_members(cohort.counts(places))
    except ProtocolError as error:
        gone, most = len(cohort) - len(places), len(cohort) - cohort.plan.threshold
        limit = f", expected at most {most}" if gone > most else ""
        raise ProtocolError(
            f"{gone} of {len(cohort)} clients dropped out{limit}: {error}", code="too-few-reports"
        ) from error
