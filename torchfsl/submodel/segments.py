"""Tensors to be learnt, and segments of them with one policy each, whatever the protocol.

A protocol adds to a `Segment` how it lays the positions out (`fsl.plan.layout` is one such place).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.types import Indices

Policy = Literal["rows", "blocks", "scalars", "dense"]
Download = Literal["full", "float16", "bfloat16"]

AnySegment = TypeVar("AnySegment", bound="Segment")

MAX_POSITIONS: Final = 1 << 32
"""Largest index space m of one segment."""

BUFFERS: Final = "buffers"
"""Segment of statistics (BatchNorm's): servers average them, whatever their optimizer."""

_POLICIES: Final = ("rows", "blocks", "scalars", "dense")
DOWNLOADS: Final[tuple[Download, ...]] = ("full", "float16", "bfloat16")
"""As what values travel to clients: as they are, or rounded to 16 bits (`halves`)."""

_DTYPES: Final = {"float16": 2, "float32": 4, "float64": 8}


def ceil_div(number: int, divisor: int) -> int:
    """`number / divisor`, rounded up."""
    return -(-number // divisor)


def ceil_shift(number: int, bits: int) -> int:
    """`number / 2**bits`, rounded up."""
    return -(-number >> bits)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one tensor of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _check_name("a tensor", self.name)
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise ParameterError(
                f"tensor {self.name!r} has shape {self.shape}: pass a tuple of whole numbers"
            )
        if self.dtype not in _DTYPES:
            raise ParameterError(
                f"tensor {self.name!r} has dtype {self.dtype}: choose one of {list(_DTYPES)}",
                code="unknown-option",
            )

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the update with one policy.

    The index space is the concatenation of the tensors in order. `rows`: a position is a tensor
    row of width tau. `blocks`: each tensor flattened and zero-padded to a multiple of tau.
    `scalars`, `dense`: flattened elements, tau = 1. A segment with a `subset` is protected over
    that part of the index space only; clients and sums go on counting in the whole of it.

    Attributes:
        name: unique in the plan.
        policy: how positions are chosen and sent.
        tensors: the tensors, in index order.
        m: positions that may be selected: all, or those of the subset.
        tau: values per position.
        k_max: largest number of positions a client may select; public.
        retrieve: whether clients fetch their rows privately before training.
        subset: the positions, strictly increasing, that any client may select; everything if empty.
            Comes from a private set union.
        encoding: of its values, if it is not the plan's; stands in the JSON only then.
        download: as what clients get its tensors, one of `DOWNLOADS`; stands in the JSON only if
            it is not `full`.
        l2_bound: as the plan's, over this segment's values alone; 0 for none, and then not in the
            JSON.
        binned: whether a client sends one position of each of k_max public bins, which `bins` parts
            anew each round; stands in the JSON only if it is so.
    """

    name: str
    policy: Policy
    tensors: tuple[TensorSpec, ...]
    m: int
    tau: int
    k_max: int
    retrieve: bool = False
    subset: tuple[int, ...] = ()
    encoding: FixedPoint | None = None
    download: Download = "full"
    l2_bound: int = 0
    binned: bool = False

    def __post_init__(self) -> None:
        _check_name("a segment", self.name)
        where = f"segment {self.name!r}"
        if self.policy not in _POLICIES:
            raise ParameterError(
                f"{where} has policy {self.policy!r}: choose one of {_POLICIES}",
                code="unknown-option",
            )
        if not self.tensors:
            raise ParameterError(f"{where} has no tensors: give it one tensor or more")
        if type(self.l2_bound) is not int or self.l2_bound < 0:
            raise ParameterError(f"{where}: l2_bound is {self.l2_bound!r}: choose 0 or more")
        if not 1 <= self.m <= MAX_POSITIONS:
            raise ParameterError(
                f"{where}: m is {self.m}: choose 1 to {MAX_POSITIONS} positions",
                code="too-many-positions",
            )
        if self.tau < 1 or not 1 <= self.k_max <= self.m:
            raise ParameterError(
                f"{where}: tau is {self.tau} and k_max is {self.k_max}: choose tau of 1 or more, "
                f"and k_max from 1 to m = {self.m}",
                code="row-limit",
            )
        if self.m != (len(self.subset) or self.index_space):
            raise ParameterError(
                f"{where}: m is {self.m}, expected {len(self.subset) or self.index_space}, the "
                f"number of positions in its {'subset' if self.subset else 'tensors'}"
            )
        self._check_subset(where)
        self._check_policy(where)

    def _check_policy(self, where: str) -> None:
        if len({t.dtype for t in self.tensors}) > 1 and self.policy == "rows":
            raise ParameterError(f"{where}: its tables have several dtypes: use one dtype")
        if self.policy in ("scalars", "dense") and self.tau != 1:
            raise ParameterError(
                f"{where}: policy {self.policy!r} has one value per position, got tau = "
                f"{self.tau}: choose tau = 1, or policy 'blocks'"
            )
        if type(self.retrieve) is not bool or (self.retrieve and self.policy != "rows"):
            raise ParameterError(
                f"{where}: retrieve is {self.retrieve!r} with policy {self.policy!r}: choose True "
                "or False, and True only with policy 'rows'"
            )
        if type(self.binned) is not bool or (
            self.binned and self.policy not in ("scalars", "blocks")
        ):
            raise ParameterError(
                f"{where}: binned is {self.binned!r} with policy {self.policy!r}: choose True or "
                "False, and True only with policy 'scalars' or 'blocks'"
            )
        if self.download not in DOWNLOADS:
            raise ParameterError(
                f"{where} has download {self.download!r}: choose one of {DOWNLOADS}",
                code="unknown-option",
            )
        if self.download != "full" and any(t.dtype == "float16" for t in self.tensors):
            raise ParameterError(f"{where}: a tensor is float16 already: use download='full'")

    def _check_subset(self, where: str) -> None:
        if not self.subset:
            return
        if self.is_dense:
            raise ParameterError(f"{where} is dense and has a subset: leave out subset")
        if set(map(type, self.subset)) != {int}:
            raise ParameterError(f"{where}: its subset has other values than int: pass ints")
        if not 0 <= self.subset[0] <= self.subset[-1] < self.index_space or any(
            low >= high for low, high in itertools.pairwise(self.subset)
        ):
            raise ParameterError(
                f"{where}: expected a subset of increasing positions from 0 to "
                f"{self.index_space - 1}"
            )

    @property
    def is_dense(self) -> bool:
        """Whether every position is sent by every client."""
        return self.policy == "dense"

    @property
    def index_space(self) -> int:
        """All positions of the tensors; above m for a segment with a subset."""
        return positions(self.policy, self.tensors, self.tau)

    def tree_positions(self, indices: Indices) -> Indices:
        """Places `int64[k]` of `indices` in the trees' index space; -1 outside of it."""
        if not self.subset:
            return indices
        subset = subset_array(self.subset)
        places = np.minimum(np.searchsorted(subset, indices), self.m - 1)
        return np.where(subset[places] == indices, places, -1)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the model's numbers as clients get it (not ring values)."""
        return self.tau * self.item_bytes(self.tensors[0])

    def item_bytes(self, tensor: TensorSpec) -> int:
        """Bytes of one of a tensor's numbers as clients get it."""
        return tensor.item_bytes if self.download == "full" else 2

    @property
    def download_bytes(self) -> int:
        """Bytes of its tensors, all downloaded."""
        return sum(tensor.numel * self.item_bytes(tensor) for tensor in self.tensors)

    def describe(self) -> dict[str, str | int]:
        """Figures for a summary; a protocol's segment adds its layout."""
        return {
            "name": self.name,
            "policy": self.policy,
            "positions": self.m,
            "values_per_position": self.tau,
            "k_max": self.k_max,
        }


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The caller's wish for one segment; a protocol's planner adds the layout.

    `k_max` is the number of positions that a client may select (ignored for `dense`). `tau` is the
    values per position for `blocks`, the row width for `rows`. The others are as in `Segment`.
    """

    name: str
    policy: Policy
    tensors: tuple[TensorSpec, ...]
    k_max: int = 0
    tau: int = 1
    retrieve: bool = False
    subset: tuple[int, ...] = ()
    encoding: FixedPoint | None = None
    download: Download = "full"
    binned: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether every position is sent by every client."""
        return self.policy == "dense"


def vars_of(spec: SegmentSpec | Segment) -> dict[str, Any]:
    """The fields of a spec, which a protocol's segment also has."""
    return {field.name: getattr(spec, field.name) for field in dataclasses.fields(SegmentSpec)}


class SpecSource(Protocol):
    """A model whose segments planners take; `torchfsl.Federated` is one."""

    @property
    def encoding(self) -> FixedPoint | None:
        """Fixed-point parameters; None for `default_encoding`."""

    def segment_specs(
        self,
        *,
        rows_per_client: int | Mapping[str, int] | None = None,
        retrieve: bool | None = None,
    ) -> list[SegmentSpec]:
        """The segments, with most rows that a client sends by segment or table."""


def default_encoding(max_clients: int, max_weight: int = 1) -> FixedPoint:
    """32 bits, values up to 4, and 20 fraction bits or as many as the clients leave room for.

    Raises:
        ParameterError: so many clients leave no room; with `encoding=` as the remedy.
    """
    cohort = max(1, max_clients * max_weight)
    room = (((1 << 31) - 1) // (4 * cohort)).bit_length() - 1
    if room < 1:
        raise ParameterError(
            f"max_clients is {max_clients}, expected at most {((1 << 28) - 1) // max_weight} with "
            f"max_weight={max_weight} in 32 bits: choose fewer clients, or pass "
            "encoding=torchfsl.FixedPoint(ring_bits=64, frac_bits=20, clip=4.0)"
        )
    return FixedPoint(ring_bits=32, frac_bits=min(20, room), clip=4.0)


@functools.lru_cache(maxsize=8)
def subset_array(subset: tuple[int, ...]) -> Indices:
    """A segment's subset as `int64[m]`, read-only."""
    array = np.array(subset, dtype=np.int64)
    array.setflags(write=False)
    return array


def positions(policy: Policy, tensors: tuple[TensorSpec, ...], tau: int) -> int:
    """Size m of the index space of `tensors` under `policy`.

    Raises:
        ParameterError: rows of another width than tau, or tau below 1.
    """
    if tau < 1:
        raise ParameterError(f"tau is {tau}: choose 1 value or more per position")
    if policy == "rows":
        for tensor in tensors:
            if len(tensor.shape) < 2 or math.prod(tensor.shape[1:]) != tau:
                raise ParameterError(
                    f"tensor {tensor.name!r} has shape {tensor.shape}, expected rows of {tau} "
                    "values: pass a tau that fits the shape"
                )
        return sum(tensor.shape[0] for tensor in tensors)
    return sum(ceil_div(tensor.numel, tau) for tensor in tensors)


def plain_segments(specs: Iterable[SegmentSpec]) -> tuple[Segment, ...]:
    """The segments wanted, for protocols that add no layout.

    Raises:
        ParameterError: one of them is not valid.
    """
    segments = []
    for spec in specs:
        m = positions(spec.policy, spec.tensors, spec.tau)
        spec = dataclasses.replace(spec, k_max=m if spec.is_dense else spec.k_max)
        segments.append(Segment(m=m, **vars_of(spec)))
    return tuple(segments)


def in_the_clear(segments: Iterable[AnySegment]) -> tuple[AnySegment, ...]:
    """Segments whose tensors clients download in full."""
    return tuple(segment for segment in segments if not segment.retrieve)


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ParameterError(
            f"{what} needs a name of printable characters, got {name!r}: choose another name"
        )


def tensor_spans(segment: Segment) -> Iterator[tuple[TensorSpec, slice]]:
    """The segment's tensors, each with its range of positions in the index space."""
    start = 0
    for tensor in segment.tensors:
        count = tensor.shape[0] if segment.policy == "rows" else ceil_div(tensor.numel, segment.tau)
        yield tensor, slice(start, start + count)
        start += count
