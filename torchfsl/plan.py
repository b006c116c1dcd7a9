"""The public plan of a task: what is aggregated, in which layout, under which parameters.

Everything two parties could derive differently stands in it literally (bins, theta, early
termination, stash). Its digest binds every message and every key. Nothing in it depends on any
client's data. `planner.build_plan` makes one; `Plan.from_json` reads one from a peer.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from torchfsl.config import DIGEST_BYTES, MAX_MESSAGE_BYTES, MAX_SIGMA, SUITE, WIRE_VERSION
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fixed_point import FixedPoint
from torchfsl.segments import Policy, Segment, TensorSpec, TreeGroup, positions

Lane = Literal["none", "count", "weight"]
Payload = Literal["values", "masks"]

_LANES: Final = ("none", "count", "weight")
_COUNTS: Final = ("max_clients", "min_clients", "max_weight", "max_epochs", "wire_version",
                  "l2_bound", "noise_sigma", "lane_sigma")  # fmt: skip
_PAYLOADS: Final = ("values", "masks")
_MAX_JSON_BYTES: Final = 1 << 24

__all__ = [
    "Lane",
    "Payload",
    "Plan",
    "Policy",
    "Segment",
    "TensorSpec",
    "TreeGroup",
    "positions",
]


@dataclass(frozen=True)
class Plan:
    """The public plan. Equal plans have equal digests; every message carries the digest.

    Attributes:
        session: 16 random bytes in hex, fresh for every task.
        hash_seed: 32 bytes in hex, fixed after the index spaces are; from the servers' joint coin.
        encoding: fixed-point parameters.
        max_clients: most reports a round may open.
        min_clients: fewest reports a round may open; one opened report is one client's update.
        segments: the parts of the update; names are unique.
        lane: `count` or `weight` adds one lane to each position, which opens how many clients
            (or which weight) contributed to it. Off by default: it discloses more.
        max_weight: largest weight a client may claim; 1 without the weight lane.
        max_epochs: rounds that one set of trees serves (U-DPF session); 1 means fresh trees every
            round. Above 1 all tree segments are fixed submodels: their trees go up once, later
            rounds upload hints only, and every max_epochs rounds a client re-keys.
        l2_bound: largest L2 norm of a client's quantised values, over all segments together and
            before its weight, in ring units; 0 means none. Clients scale their update down to it.
        noise_sigma: standard deviation, in ring units, of the discrete Gaussian noise that each
            server adds to every value of every sum; 0 means none. See `privacy`.
        lane_sigma: the same for the count or weight lane.
        payload: `values`, or `masks` for a private set union: clients send uniform ring values and
            only which sums are not zero is used; see `psu`.
    """

    session: str
    hash_seed: str
    encoding: FixedPoint
    max_clients: int
    segments: tuple[Segment, ...]
    min_clients: int = 2
    lane: Lane = "none"
    max_weight: int = 1
    max_epochs: int = 1
    l2_bound: int = 0
    noise_sigma: int = 0
    lane_sigma: int = 0
    payload: Payload = "values"
    wire_version: int = WIRE_VERSION
    suite: str = SUITE

    def __post_init__(self) -> None:
        if self.wire_version != WIRE_VERSION:
            raise ParameterError(
                f"plan of wire version {self.wire_version}, this library speaks {WIRE_VERSION}: "
                f"upgrade {'this side' if self.wire_version > WIRE_VERSION else 'the peer'}"
            )
        if self.suite != SUITE:
            raise ParameterError(f"suite {self.suite!r} is unknown; this library has {SUITE!r}")
        _check_hex("session", self.session, 16)
        _check_hex("hash_seed", self.hash_seed, DIGEST_BYTES)
        _expect_ints({name: getattr(self, name) for name in _COUNTS}, _COUNTS)
        if not 1 <= self.min_clients <= self.max_clients:
            raise ParameterError(
                f"needs 1 <= min_clients ({self.min_clients}) <= max_clients ({self.max_clients}): "
                "plan for more clients, or lower min_clients (1 opens a single client's update)"
            )
        if self.lane not in _LANES:
            raise ParameterError(f"lane is {self.lane!r}; choose one of {_LANES}")
        if self.max_weight < 1 or (self.max_weight > 1 and self.lane != "weight"):
            raise ParameterError("max_weight is at least 1, and 1 unless lane is 'weight'")
        if self.max_epochs < 1:
            raise ParameterError("max_epochs is at least 1 (fresh trees every round)")
        self.encoding.check_headroom(self.max_clients, self.max_weight)
        self._check_noise()
        self._check_payload()
        if len({s.check_bytes for s in self.segments if s.policy != "dense"}) > 1:
            raise ParameterError("all tree segments carry check words, or none does")
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) != len(names):
            raise ParameterError("a plan needs segments, and their names must differ")
        owned = [tensor.name for segment in self.segments for tensor in segment.tensors]
        if len(set(owned)) != len(owned):
            raise ParameterError("a tensor stands in two segments: aggregate it once")
        self._check_sizes()

    def _check_noise(self) -> None:
        """Refuse a norm bound too tight to round to, noise without a meaning, or no headroom."""
        bound, sigma, lane_sigma = self.l2_bound, self.noise_sigma, self.lane_sigma
        if min(bound, sigma, lane_sigma) < 0 or max(sigma, lane_sigma) > MAX_SIGMA:
            raise ParameterError(f"l2_bound is not negative, both sigmas lie in 0..{MAX_SIGMA}")
        if bound and bound * bound < self.values_per_client:
            raise ParameterError(
                f"l2_bound is {bound}: rounding {self.values_per_client} values alone can exceed "
                f"it; use more frac_bits, or a bound of {math.isqrt(self.values_per_client) + 1}"
            )
        if sigma and not bound:
            raise ParameterError("noise guarantees nothing without l2_bound: set both")
        if (lane_sigma > 0) != (sigma > 0 and self.lane != "none"):
            raise ParameterError(
                "lane_sigma is above 0 exactly when noise_sigma is and there is a lane, since an "
                "exact count beside noisy values would give them away"
            )
        cohort, capacity = self.max_clients * self.max_weight, self.encoding.capacity
        for what, most, s in (
            ("a sum", self.encoding.q_max, sigma),
            ("the lane's sum", 1, lane_sigma),
        ):
            # Both servers' noise: nine standard deviations of sqrt(2) s, rounded up.
            if cohort * most + math.isqrt(162 * s * s) + (s > 0) > capacity:
                raise ParameterError(
                    f"{what} of {self.max_clients} clients with both servers' noise would overflow "
                    f"the ring's limit {capacity}: use more ring_bits, fewer frac_bits, less noise"
                )

    def _check_payload(self) -> None:
        """Masks are uniform over 64-bit rings and add up to nothing that noise or lanes fit."""
        if self.payload not in _PAYLOADS:
            raise ParameterError(f"payload is {self.payload!r}; choose one of {_PAYLOADS}")
        if self.payload == "masks" and (
            self.encoding.ring_bits != 64
            or self.lane != "none"
            or self.l2_bound
            or self.max_epochs > 1
            or any(s.policy == "dense" for s in self.segments)
        ):
            raise ParameterError(
                "masks need a 64-bit ring, trees, fresh ones each round, no lane and no norm bound"
            )

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON: 32 bytes."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def segment(self, name: str) -> Segment:
        """The segment called `name`.

        Raises:
            ParameterError: there is none.
        """
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise ParameterError(
            f"the plan has no segment {name!r}; it has {[s.name for s in self.segments]}"
        )

    @property
    def verified(self) -> bool:
        """Whether trees carry check words."""
        return any(segment.check_bytes for segment in self.segments)

    @property
    def lanes(self) -> int:
        """Extra ring values a position: 1 with a count or weight lane, else 0."""
        return 0 if self.lane == "none" else 1

    @property
    def values_per_client(self) -> int:
        """Most values that one client's update has, over all segments, lanes not counted."""
        return sum(s.k_max * s.tau for s in self.segments)

    def value_bytes(self, segment: Segment) -> int:
        """Ring bytes W/8 of one position of a tree segment, lane included."""
        return (segment.tau + self.lanes) * self.encoding.ring_bits // 8

    def hint_bytes(self, segment: Segment) -> int:
        """Bytes of one epoch's hints of a tree segment."""
        return segment.num_trees * (self.value_bytes(segment) << segment.nu)

    def dense_values(self, segment: Segment) -> int:
        """Ring values of a dense segment; the weight lane adds one for the client's weight."""
        return segment.m + (1 if self.lane == "weight" else 0)

    def dense_bytes(self, segment: Segment) -> int:
        """Bytes of the masked values of a dense segment."""
        return self.dense_values(segment) * self.encoding.ring_bits // 8

    def _check_sizes(self) -> None:
        """Refuse a plan one of whose messages a peer would refuse for its length."""
        trees = [s for s in self.segments if s.policy != "dense"]
        masked = sum(self.dense_bytes(s) for s in self.segments if s.policy == "dense")
        largest = max(
            masked + sum(s.tree_bytes + self.hint_bytes(s) for s in trees),
            masked + sum(s.m * self.value_bytes(s) for s in trees),
            sum(s.answer_bytes for s in trees),
            sum(t.numel * t.item_bytes for t in self.clear_tensors),
        )
        if largest + 1024 > MAX_MESSAGE_BYTES:  # header, seeds and digests take less than 1 KiB
            raise ParameterError(
                f"a message of this plan would have {largest} bytes, above the limit "
                f"{MAX_MESSAGE_BYTES}: split the model into several plans"
            )

    @property
    def clear_tensors(self) -> tuple[TensorSpec, ...]:
        """Tensors that clients download in the clear: all outside retrieving segments."""
        return tuple(t for s in self.segments if not s.retrieve for t in s.tensors)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space, every field present."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a peer's plan; everything is validated.

        Raises:
            DecodeError: not canonical JSON of a valid plan.
        """
        if len(text) > _MAX_JSON_BYTES:
            raise DecodeError(f"a plan of {len(text)} bytes exceeds {_MAX_JSON_BYTES}")
        try:
            fields = json.loads(text)
            plan = cls(**_plan_fields(fields))
        except (ParameterError, TypeError, KeyError, ValueError, RecursionError) as error:
            raise DecodeError(f"not a valid plan: {error}") from error
        given = text.encode() if isinstance(text, str) else text
        if plan.to_json().encode() != given:
            raise DecodeError("not a canonical plan: fields or formatting differ")
        return plan

    def explain(self) -> str:
        """A table of the segments: sizes, bytes, and what a dense upload would cost."""
        from torchfsl.explain import explain

        return explain(self)


def _check_hex(field: str, value: str, size: int) -> None:
    try:
        right = bytes.fromhex(value).hex() == value and len(value) == 2 * size
    except (ValueError, TypeError):
        right = False
    if not right:
        raise ParameterError(f"{field} must be {size} bytes in lower-case hex")


def _plan_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON objects to the dataclasses' constructor arguments."""
    segments = []
    for raw in fields["segments"]:
        _expect_ints(
            raw,
            ("m", "tau", "k_max", "num_bins", "theta", "nu", "stash", "check_bytes", "tag_bytes"),
        )
        tensors = tuple(
            TensorSpec(t["name"], tuple(t["shape"]), t["dtype"]) for t in raw["tensors"]
        )
        subset = tuple(raw["subset"])
        segments.append(Segment(**{**raw, "tensors": tensors, "subset": subset}))
    _expect_ints(fields, _COUNTS)
    _expect_ints(fields["encoding"], ("ring_bits", "frac_bits"))
    return {**fields, "segments": tuple(segments), "encoding": FixedPoint(**fields["encoding"])}


def _expect_ints(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if type(fields[name]) is not int:
            raise ParameterError(f"{name} is {fields[name]!r}, not an integer")
