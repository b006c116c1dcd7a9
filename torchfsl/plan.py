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

from torchfsl.config import (
    CHECK_BYTES,
    DIGEST_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_POSITIONS,
    NUM_HASHES,
    SUITE,
    TAG_BYTES,
    WIRE_VERSION,
)
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fixed_point import FixedPoint

Policy = Literal["rows", "blocks", "scalars", "dense"]
Lane = Literal["none", "count", "weight"]

_POLICIES: Final = ("rows", "blocks", "scalars", "dense")
_LANES: Final = ("none", "count", "weight")
_DTYPES: Final = {"float16": 2, "float32": 4, "float64": 8}
_MAX_JSON_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one tensor of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _check_name("a tensor", self.name)
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise ParameterError(f"{self.name}: shape {self.shape} is not a tuple of sizes")
        if self.dtype not in _DTYPES:
            raise ParameterError(f"{self.name}: dtype {self.dtype}; choose one of {list(_DTYPES)}")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """Trees of one shape: the bins of a segment, or its stash, whose trees see all positions."""

    num_trees: int
    domain: int
    nu: int
    is_stash: bool
    check_bytes: int

    @property
    def num_leaves(self) -> int:
        """Leaf blocks of 2**nu rows that cover the domain."""
        return -(-self.domain >> self.nu)

    @property
    def depth(self) -> int:
        """Levels of correction words."""
        return (self.num_leaves - 1).bit_length()

    @property
    def tree_bytes(self) -> int:
        """Public bytes: 128 + 1 bits a tree and level (single bits packed), and check words."""
        levels = self.num_trees * self.depth
        return levels * 16 + (levels + 7) // 8 + self.num_trees * self.check_bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the update with one policy.

    The index space is the concatenation of the tensors in order. `rows`: a position is a tensor
    row of width tau. `blocks`: each tensor flattened and zero-padded to a multiple of tau.
    `scalars`, `dense`: flattened elements, tau = 1.

    Attributes:
        name: unique in the plan.
        policy: how positions are chosen and sent.
        tensors: the tensors, in index order.
        m: positions.
        tau: values a position.
        k_max: largest number of positions a client may select; public.
        num_bins: cuckoo bins B, a multiple of 3; 0 for full-domain trees and for `dense`.
        theta: positions a bin.
        nu: early termination, a leaf is a block of 2**nu positions.
        stash: trees over the whole index space (all of them, k_max, for full-domain trees).
        retrieve: whether clients fetch their rows privately, with the same trees, before training.
        check_bytes: 32 when every tree carries a check word, by which the servers refuse a client
            that changes more than one leaf of a bin; 0 in the semi-honest option.
        tag_bytes: 16 when every answer of a retrieval carries a tag, by which a client notices a
            server that alters an answer; 0 without retrieval or in the semi-honest option.
    """

    name: str
    policy: Policy
    tensors: tuple[TensorSpec, ...]
    m: int
    tau: int
    k_max: int
    num_bins: int = 0
    theta: int = 0
    nu: int = 0
    stash: int = 0
    retrieve: bool = False
    check_bytes: int = 0
    tag_bytes: int = 0

    def __post_init__(self) -> None:
        _check_name("a segment", self.name)
        where = f"segment {self.name!r}"
        if self.policy not in _POLICIES:
            raise ParameterError(f"{where}: policy {self.policy!r}; choose one of {_POLICIES}")
        if not self.tensors:
            raise ParameterError(f"{where} has no tensors")
        if not 1 <= self.m <= MAX_POSITIONS:
            raise ParameterError(f"{where}: m is {self.m}; the limit is {MAX_POSITIONS} positions")
        if self.tau < 1 or not 1 <= self.k_max <= self.m:
            raise ParameterError(f"{where}: needs tau >= 1 and 1 <= k_max <= m = {self.m}")
        if self.m != positions(self.policy, self.tensors, self.tau):
            raise ParameterError(f"{where}: m = {self.m} does not fit its tensors")
        if len({t.dtype for t in self.tensors}) > 1 and self.policy == "rows":
            raise ParameterError(f"{where}: its tensors have different dtypes")
        if self.policy == "scalars" and self.tau != 1:
            raise ParameterError(f"{where}: scalars have tau = 1; choose blocks for more")
        if type(self.retrieve) is not bool or (self.retrieve and self.policy != "rows"):
            raise ParameterError(f"{where}: only rows can be retrieved privately")
        if self.tag_bytes not in ((0, TAG_BYTES) if self.retrieve else (0,)):
            raise ParameterError(f"{where}: tag_bytes is {TAG_BYTES} or 0, and 0 if not retrieved")
        if self.check_bytes not in ((0,) if self.policy == "dense" else (0, CHECK_BYTES)):
            raise ParameterError(f"{where}: check_bytes is {CHECK_BYTES} or 0, and 0 for dense")
        if self.policy == "dense":
            if (self.num_bins, self.theta, self.nu, self.stash) != (0, 0, 0, 0) or self.tau != 1:
                raise ParameterError(f"{where}: a dense segment has no trees and tau = 1")
            return
        if not (0 <= self.nu <= 7 and self.num_bins >= 0 and 0 <= self.stash <= self.k_max):
            raise ParameterError(f"{where}: needs nu in 0..7, bins >= 0, stash in 0..k_max")
        if self.num_bins == 0:
            if self.stash != self.k_max or self.theta != 0:
                raise ParameterError(f"{where}: full-domain trees need stash = k_max, theta 0")
        elif (
            self.num_bins % NUM_HASHES
            or self.theta < 1
            or self.num_bins != NUM_HASHES * -(-self.m // self.theta)
        ):
            raise ParameterError(f"{where}: bins must be 3 * ceil(m / theta)")

    @property
    def mechanism(self) -> str:
        """`dpf` (cuckoo bins), `full-domain` (one tree a row) or `dense` (additive shares)."""
        if self.policy == "dense":
            return "dense"
        return "dpf" if self.num_bins else "full-domain"

    @property
    def groups(self) -> tuple[TreeGroup, ...]:
        """Groups of equal trees, bins before stash, empty ones left out."""
        both = (
            TreeGroup(self.num_bins, self.theta, self.nu, False, self.check_bytes),
            TreeGroup(self.stash, self.m, self.nu, True, self.check_bytes),
        )
        return tuple(group for group in both if group.num_trees)

    @property
    def num_trees(self) -> int:
        """Bins and stash together; 0 for `dense`."""
        return self.num_bins + self.stash

    @property
    def tree_bytes(self) -> int:
        """Public bytes of all its trees."""
        return sum(group.tree_bytes for group in self.groups)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the model's own numbers (not ring values)."""
        return self.tau * self.tensors[0].item_bytes

    @property
    def answer_bytes(self) -> int:
        """Bytes one server answers in a retrieval."""
        if not self.retrieve:
            return 0
        return self.num_trees * ((self.row_bytes << self.nu) + self.tag_bytes)


def positions(policy: Policy, tensors: tuple[TensorSpec, ...], tau: int) -> int:
    """Size m of the index space of `tensors` under `policy`.

    Raises:
        ParameterError: rows of another width than tau, or tau below 1.
    """
    if tau < 1:
        raise ParameterError(f"tau is {tau}; a position has at least one value")
    if policy == "rows":
        for tensor in tensors:
            if len(tensor.shape) < 2 or math.prod(tensor.shape[1:]) != tau:
                raise ParameterError(f"{tensor.name}: rows of {tensor.shape} are not {tau} wide")
        return sum(tensor.shape[0] for tensor in tensors)
    return sum(-(-tensor.numel // tau) for tensor in tensors)


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
        if not 1 <= self.min_clients <= self.max_clients:
            raise ParameterError(
                f"needs 1 <= min_clients ({self.min_clients}) <= max_clients ({self.max_clients})"
            )
        if self.lane not in _LANES:
            raise ParameterError(f"lane is {self.lane!r}; choose one of {_LANES}")
        if self.max_weight < 1 or (self.max_weight > 1 and self.lane != "weight"):
            raise ParameterError("max_weight is at least 1, and 1 unless lane is 'weight'")
        if self.max_epochs < 1:
            raise ParameterError("max_epochs is at least 1 (fresh trees every round)")
        self.encoding.check_headroom(self.max_clients, self.max_weight)
        if self.max_clients * self.max_weight > self.encoding.capacity:
            raise ParameterError("the lane's sum would overflow the ring: use more ring_bits")
        if len({s.check_bytes for s in self.segments if s.policy != "dense"}) > 1:
            raise ParameterError("all tree segments carry check words, or none does")
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) != len(names):
            raise ParameterError("a plan needs segments, and their names must differ")
        owned = [tensor.name for segment in self.segments for tensor in segment.tensors]
        if len(set(owned)) != len(owned):
            raise ParameterError("a tensor stands in two segments: aggregate it once")
        self._check_sizes()

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON: 32 bytes."""
        return hashlib.sha256(self.to_json().encode()).digest()

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
        from torchfsl.planner import explain

        return explain(self)


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ParameterError(f"{what} needs a name of printable characters, got {name!r}")


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
        segments.append(Segment(**{**raw, "tensors": tensors}))
    _expect_ints(fields, ("max_clients", "min_clients", "max_weight", "max_epochs", "wire_version"))
    _expect_ints(fields["encoding"], ("ring_bits", "frac_bits"))
    return {**fields, "segments": tuple(segments), "encoding": FixedPoint(**fields["encoding"])}


def _expect_ints(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if type(fields[name]) is not int:
            raise ParameterError(f"{name} is not an integer")
