"""The public plan of an aggregator and a key holder, and what it refuses.

Every client encrypts every parameter, so segments are dense. The plan is made in two steps: a draft
says what is learnt, and `SeflPlan.bound_to` adds the digest of the key holder's public key and both
servers' keys for signatures. Messages carry the digest of the bound plan, so that a client of a
plan encrypts under that key or not at all. New keys are a new plan.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

from torchfsl.crypto.bfv_parameters import Scheme, least_modulus
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.submodel.framing import MAX_MESSAGE_BYTES
from torchfsl.submodel.plan import Lane, SubmodelPlan, check_plain, check_suite, noise_tail
from torchfsl.submodel.plan_fields import check_hex, drawn_session, expect_ints
from torchfsl.submodel.plan_json import read_plan
from torchfsl.submodel.segments import (
    SegmentSpec,
    SpecSource,
    ceil_div,
    default_encoding,
    plain_segments,
)

WIRE_VERSION: Final = 2
SUITE: Final = "sefl-bfv-ed25519"

LABEL_KEY: Final = b"torchfsl homomorphic key"
LABEL_SUBMISSION: Final = b"torchfsl encrypted update"
LABEL_OPENING: Final = b"torchfsl encrypted sum"
LABEL_VALUE: Final = b"torchfsl opened sum"
LABEL_RECEIPT: Final = b"torchfsl encrypted receipt"
LABEL_SIGNED: Final = b"torchfsl signed sum"
"""Labels of digests and signatures; no other use has them."""

_KEY_BYTES: Final = 32
_KEYS: Final = ("public_key", "receipt_key", "answer_key")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SeflPlan(SubmodelPlan):
    """The public plan of both servers.

    Equal plans have equal digests, and every message carries the digest.

    Attributes:
        slots: numbers a ciphertext, which is BFV's degree: 2048, or 4096 for sums of up to 50 bits.
        public_key: SHA-256 of the key holder's public key in hex; empty in a draft.
        receipt_key: the aggregator's Ed25519 key in hex, under which it signs receipts and sums;
            empty in a draft.
        answer_key: the key holder's Ed25519 key in hex, under which it signs what it opens; empty
            in a draft.

    The other attributes are those of `SubmodelPlan`. A weight lane is one number a client, at the
    end of its values; a count lane would tell nothing, since everybody sends every position.
    """

    slots: int = 2048
    public_key: str = ""
    receipt_key: str = ""
    answer_key: str = ""
    wire_version: int = WIRE_VERSION
    suite: str = SUITE

    def __post_init__(self) -> None:
        check_suite(self, WIRE_VERSION, SUITE)
        SubmodelPlan.__post_init__(self)
        expect_ints({"slots": self.slots}, ("slots",))
        keys = {name: getattr(self, name) for name in _KEYS}
        if len({bool(key) for key in keys.values()}) > 1:
            raise ParameterError(
                "the plan has the keys of some servers only: add the missing keys, or leave out "
                "all keys for a draft"
            )
        for name, key in keys.items():
            if key:
                check_hex(name, key, _KEY_BYTES)
        if any(not segment.is_dense for segment in self.segments):
            raise ParameterError(
                "sefl encrypts every parameter and cannot select rows or positions: use rows=None "
                "and rest=Dense()",
                code="unsupported-plan",
            )
        check_plain(self, "sefl sums all values in one ciphertext space")
        if self.lane == "count" or self.min_contributors > 1:
            raise ParameterError(
                "sefl does not support counts, because every client sends every position: use "
                "lane='none' and min_contributors=1",
                code="unsupported-plan",
            )
        assert self.scheme  # refuses what could come out wrong
        if self.ciphertexts * self.scheme.ring.ciphertext_bytes > MAX_MESSAGE_BYTES // 2:
            raise ParameterError(
                f"messages of {self.num_values} values exceed the limit of "
                f"{MAX_MESSAGE_BYTES // 2} bytes: use a smaller model",
                code="message-too-large",
            )

    @functools.cached_property
    def scheme(self) -> Scheme:
        """Parameters of the encryption, the least modulus that no sum leaves.

        Raises:
            ParameterError: such sums do not fit; the message names the remedy.
        """
        return Scheme(self.slots, least_modulus(self.slots, self.bound), self.max_clients + 1)

    @property
    def bound(self) -> int:
        """Largest magnitude of an honest sum, both servers' noise included."""
        cohort = self.max_clients * self.max_weight
        return max(
            cohort * self.encoding.q_max + noise_tail(self.noise_sigma),
            cohort + noise_tail(self.lane_sigma),
        )

    @property
    def num_values(self) -> int:
        """Numbers that a client encrypts: its values in plan order, then its weight."""
        return sum(segment.m for segment in self.segments) + self.lane_values

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts of a client, and of a sum."""
        return ceil_div(self.num_values, self.slots)

    @property
    def is_draft(self) -> bool:
        """Whether the keys are missing."""
        return not self.public_key

    def bound_to(self, public_key: bytes, receipt_key: bytes, answer_key: bytes) -> SeflPlan:
        """This plan with its servers' keys.

        Args:
            public_key: digest of the public key, 32 bytes.
            receipt_key: the aggregator's public signing key, 32 bytes.
            answer_key: the key holder's public signing key, 32 bytes.
        """
        return dataclasses.replace(
            self,
            public_key=public_key.hex(),
            receipt_key=receipt_key.hex(),
            answer_key=answer_key.hex(),
        )

    @property
    def draft(self) -> SeflPlan:
        """This plan without keys, to be bound to those of servers that start anew."""
        return dataclasses.replace(self, public_key="", receipt_key="", answer_key="")

    def check_clients(self, count: int) -> str:
        """Why a sum of `count` clients may not be opened; empty if it may."""
        if self.min_clients <= count <= self.max_clients:
            return ""
        return (
            f"{count} clients sent updates, and a round of this plan needs {self.min_clients} to "
            f"{self.max_clients}"
        )

    def describe(self) -> dict[str, str]:
        """See `SubmodelPlan`."""
        return {
            "verification": "none",
            "retrieval": "none: every client downloads the whole model",
            "encryption": f"BFV, {self.slots} slots of {self.scheme.modulus.bit_length()} bits",
            "servers": "aggregator (semi-honest) and key holder, which do not collude",
        }

    @classmethod
    def from_json(cls, text: str | bytes) -> SeflPlan:
        """Read `text`, a peer's plan or one's own of an earlier run; everything is validated.

        Returns:
            The plan.

        Raises:
            DecodeError: if it is not canonical JSON of a valid plan.
        """
        return read_plan(cls, text)


class PlanOptions(TypedDict, total=False):
    """Options of `build_plan` next to segments, encoding and `max_clients`.

    Attributes:
        min_clients: fewest clients whose sum is opened; the key holder insists on it.
        slots: see `SeflPlan`.
        lane: `weight` for the clients' weights, or `none`.
        session: 16 bytes; from the operating system when None.

    The others are those of `SubmodelPlan`.
    """

    min_clients: int
    slots: int
    lane: Lane
    max_weight: int
    max_rounds: int
    l2_bound: int
    noise_sigma: int
    lane_sigma: int
    session: bytes | None


def build_plan(
    specs: Sequence[SegmentSpec],
    *,
    encoding: FixedPoint,
    max_clients: int,
    **options: Unpack[PlanOptions],
) -> SeflPlan:
    """Draft a plan, to be bound to the servers' keys.

    Args:
        specs: the segments wanted, all dense.
        encoding: fixed-point parameters; its ring only bounds sums once more.
        max_clients: see `SubmodelPlan`.
        **options: see `PlanOptions`.

    Returns:
        The plan, without keys.

    Raises:
        ParameterError: if a limit is exceeded; the message names it.
    """
    fields: dict[str, Any] = {**options, "session": drawn_session(options.get("session"))}
    segments = plain_segments(specs)
    return SeflPlan(encoding=encoding, max_clients=max_clients, segments=segments, **fields)


def plan(fed: SpecSource, *, max_clients: int, **options: Unpack[PlanOptions]) -> SeflPlan:
    """A plan for an aggregator and a key holder: `fed.plan = torchfsl.sefl.plan(fed, ...)`.

    Args:
        fed: a `torchfsl.Federated` with `rows=None` and `rest=Dense()`.
        max_clients: see `SubmodelPlan`.
        **options: see `PlanOptions`.

    Raises:
        ParameterError: other policies, or a limit exceeded.
    """
    specs = fed.segment_specs(retrieve=False)
    encoding = fed.encoding or default_encoding(max_clients, options.get("max_weight", 1))
    return build_plan(specs, encoding=encoding, max_clients=max_clients, **options)
