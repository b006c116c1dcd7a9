"""The public plan of an aggregator and a key holder, and what it refuses.

Every client encrypts every parameter, so segments are dense. The plan is made in two steps: a draft
says what is learnt, and `SeflPlan.bound` adds the digest of the key holder's public key and the
aggregator's key for receipts. Messages carry the digest of the bound plan, so that a client of a
plan encrypts under that key or not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from torchfsl.crypto.bfv_parameters import Scheme, least_modulus
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.submodel.plan import Lane, SubmodelPlan, check_hex, expect_ints, noise_tail
from torchfsl.submodel.segments import Segment, SegmentSpec, TensorSpec, ceil_div, positions

WIRE_VERSION: Final = 1
SUITE: Final = "sefl-bfv-ed25519"
MAX_MESSAGE_BYTES: Final = 1 << 32

LABEL_KEY: Final = b"torchfsl homomorphic key"
LABEL_SUBMISSION: Final = b"torchfsl encrypted update"
LABEL_OPENING: Final = b"torchfsl encrypted sum"
LABEL_RECEIPT: Final = b"torchfsl encrypted receipt"
"""Labels of digests and signatures; no other use has them."""

_MAX_JSON_BYTES: Final = 1 << 24
_KEY_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class SeflPlan(SubmodelPlan):
    """The public plan of both servers. Equal plans have equal digests; every message carries it.

    Attributes:
        slots: numbers a ciphertext, which is BFV's degree: 2048, or 4096 for sums of up to 50 bits.
        public_key: SHA-256 of the key holder's public key in hex; empty in a draft.
        receipt_key: the aggregator's Ed25519 key in hex; empty in a draft.

    The other attributes are those of `SubmodelPlan`. A weight lane is one number a client, at the
    end of its values; a count lane would tell nothing, since everybody sends every position.
    """

    slots: int = 2048
    public_key: str = ""
    receipt_key: str = ""
    wire_version: int = WIRE_VERSION
    suite: str = SUITE

    def __post_init__(self) -> None:
        if self.wire_version != WIRE_VERSION or self.suite != SUITE:
            raise ParameterError(
                f"plan of version {self.wire_version} and suite {self.suite!r}, this library has "
                f"{WIRE_VERSION} and {SUITE!r}"
            )
        SubmodelPlan.__post_init__(self)
        expect_ints({"slots": self.slots}, ("slots",))
        if bool(self.public_key) != bool(self.receipt_key):
            raise ParameterError("a plan names both keys or, as a draft, none")
        if self.public_key:
            check_hex("public_key", self.public_key, _KEY_BYTES)
            check_hex("receipt_key", self.receipt_key, _KEY_BYTES)
        if any(not segment.is_dense for segment in self.segments):
            raise ParameterError(
                "sefl encrypts every parameter and hides no choice of positions: use dense segments"
            )
        if self.lane == "count" or self.min_contributors > 1:
            raise ParameterError("everybody sends every position: leave out lane='count'")
        assert self.scheme  # refuses what could come out wrong
        if self.ciphertexts * self.scheme.ring.ciphertext_bytes > MAX_MESSAGE_BYTES // 2:
            raise ParameterError(
                f"{self.num_values} values make messages above {MAX_MESSAGE_BYTES // 2} bytes: "
                "split the model"
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

    def bound_to(self, public_key: bytes, receipt_key: bytes) -> SeflPlan:
        """This plan with both keys: the digest of the one, the other as it is; 32 bytes each."""
        return dataclasses.replace(self, public_key=public_key.hex(), receipt_key=receipt_key.hex())

    @property
    def draft(self) -> SeflPlan:
        """This plan without keys, to be bound to those of servers that start anew."""
        return dataclasses.replace(self, public_key="", receipt_key="")

    def check_clients(self, count: int) -> str:
        """Why a sum of so many clients may not be opened; empty if it may."""
        if self.min_clients <= count <= self.max_clients:
            return ""
        return (
            f"{count} clients, a round of this plan opens {self.min_clients} to {self.max_clients}"
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
        """Read a peer's plan, or one's own of an earlier run; everything is validated.

        Raises:
            DecodeError: not canonical JSON of a valid plan.
        """
        if len(text) > _MAX_JSON_BYTES:
            raise DecodeError(f"a plan of {len(text)} bytes exceeds {_MAX_JSON_BYTES}")
        try:
            plan = cls(**_plan_fields(json.loads(text)))
        except (ParameterError, TypeError, KeyError, ValueError, RecursionError) as error:
            raise DecodeError(f"not a valid plan: {error}") from error
        if plan.to_json().encode() != (text.encode() if isinstance(text, str) else text):
            raise DecodeError("not a canonical plan: fields or formatting differ")
        return plan


def _plan_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON objects to the dataclasses' constructor arguments."""
    segments = []
    for raw in fields["segments"]:
        expect_ints(raw, ("m", "tau", "k_max"))
        tensors = tuple(
            TensorSpec(t["name"], tuple(t["shape"]), t["dtype"]) for t in raw["tensors"]
        )
        segments.append(Segment(**{**raw, "tensors": tensors, "subset": tuple(raw["subset"])}))
    expect_ints(fields["encoding"], ("ring_bits", "frac_bits"))
    return {
        **fields,
        "segments": tuple(segments),
        "encoding": FixedPoint(**fields["encoding"]),
    }


class PlanOptions(TypedDict, total=False):
    """What `build_plan` takes beside segments and encoding; each field is explained there.

    `max_clients` is needed.
    """

    max_clients: int
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
    min_clients: int = 2,
    slots: int = 2048,
    lane: Lane = "none",
    max_weight: int = 1,
    max_rounds: int = 0,
    l2_bound: int = 0,
    noise_sigma: int = 0,
    lane_sigma: int = 0,
    session: bytes | None = None,
) -> SeflPlan:
    """Draft a plan, to be bound to the servers' keys.

    Args:
        specs: the segments wanted, all dense.
        encoding: fixed-point parameters; its ring only bounds sums once more.
        max_clients: see `SubmodelPlan`, as are the others without a line here.
        min_clients: fewest clients whose sum is opened; the key holder insists on it.
        slots: see `SeflPlan`.
        lane: `weight` for the clients' weights, beside `none`.
        max_weight: see `SubmodelPlan`.
        max_rounds: see `SubmodelPlan`.
        l2_bound: see `SubmodelPlan`.
        noise_sigma: see `SubmodelPlan`.
        lane_sigma: see `SubmodelPlan`.
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
    return SeflPlan(
        session=(random_bytes(16) if session is None else session).hex(),
        encoding=encoding,
        max_clients=max_clients,
        min_clients=min_clients,
        segments=tuple(segments),
        slots=slots,
        lane=lane,
        max_weight=max_weight,
        max_rounds=max_rounds,
        l2_bound=l2_bound,
        noise_sigma=noise_sigma,
        lane_sigma=lane_sigma,
    )
