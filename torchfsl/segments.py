"""The parts of a plan: tensors, segments of them, and the groups of equal trees of a segment."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from torchfsl.config import CHECK_BYTES, MAX_POSITIONS, NUM_HASHES, TAG_BYTES
from torchfsl.errors import ParameterError

Policy = Literal["rows", "blocks", "scalars", "dense"]
Indices = npt.NDArray[np.int64]

_POLICIES: Final = ("rows", "blocks", "scalars", "dense")
_DTYPES: Final = {"float16": 2, "float32": 4, "float64": 8}


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


@dataclass(frozen=True)
class TreeGroup:
    """Trees of one shape: the bins of a segment, or its stash, whose trees see all positions."""

    num_trees: int
    domain: int
    nu: int
    is_stash: bool
    check_bytes: int

    @functools.cached_property
    def num_leaves(self) -> int:
        """Leaf blocks of 2**nu rows that cover the domain."""
        return -(-self.domain >> self.nu)

    @functools.cached_property
    def depth(self) -> int:
        """Levels of correction words."""
        return (self.num_leaves - 1).bit_length()

    @functools.cached_property
    def tree_bytes(self) -> int:
        """Public bytes: 128 + 1 bits a tree and level (single bits packed), and check words."""
        levels = self.num_trees * self.depth
        return levels * 16 + (levels + 7) // 8 + self.num_trees * self.check_bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the update with one policy.

    The index space is the concatenation of the tensors in order. `rows`: a position is a tensor
    row of width tau. `blocks`: each tensor flattened and zero-padded to a multiple of tau.
    `scalars`, `dense`: flattened elements, tau = 1. A segment with a `subset` has trees over that
    part of the index space only; clients and sums go on counting in the whole of it.

    Attributes:
        name: unique in the plan.
        policy: how positions are chosen and sent.
        tensors: the tensors, in index order.
        m: positions that the trees tell apart: all, or those of the subset.
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
        subset: the positions, strictly increasing, that any client may select; everything if empty.
            Comes from a private set union, see `psu`.
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
    subset: tuple[int, ...] = ()

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
        if self.m != (len(self.subset) or self.index_space):
            raise ParameterError(f"{where}: m = {self.m} does not fit its tensors or subset")
        self._check_subset(where)
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
        elif self.num_bins * (-(-self.theta >> self.nu) << self.nu) > MAX_POSITIONS:
            raise ParameterError(f"{where}: more than {MAX_POSITIONS} slots in its bins: split it")

    def _check_subset(self, where: str) -> None:
        if not self.subset:
            return
        if self.policy == "dense" or set(map(type, self.subset)) != {int}:
            raise ParameterError(f"{where}: a subset holds positions of a segment with trees")
        if not 0 <= self.subset[0] <= self.subset[-1] < self.index_space or any(
            low >= high for low, high in itertools.pairwise(self.subset)
        ):
            raise ParameterError(
                f"{where}: a subset is strictly increasing in [0, {self.index_space})"
            )

    @property
    def index_space(self) -> int:
        """All positions of the tensors; above m for a segment with a subset."""
        return positions(self.policy, self.tensors, self.tau)

    def tree_positions(self, indices: Indices) -> Indices:
        """Positions `int64[k]` of the index space, as the trees count them; -1 outside them."""
        if not self.subset:
            return indices
        subset = subset_array(self.subset)
        found = np.minimum(np.searchsorted(subset, indices), self.m - 1)
        return np.where(subset[found] == indices, found, -1)

    @property
    def mechanism(self) -> str:
        """`dpf` (cuckoo bins), `full-domain` (one tree a row) or `dense` (additive shares)."""
        if self.policy == "dense":
            return "dense"
        return "dpf" if self.num_bins else "full-domain"

    @property
    def groups(self) -> tuple[TreeGroup, ...]:
        """Groups of equal trees, bins before stash, empty ones left out."""
        return _groups(self.num_bins, self.theta, self.stash, self.m, self.nu, self.check_bytes)

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


@functools.lru_cache(maxsize=128)  # asked for many times a report
def _groups(
    num_bins: int, theta: int, stash: int, m: int, nu: int, check_bytes: int
) -> tuple[TreeGroup, ...]:
    both = (
        TreeGroup(num_bins, theta, nu, False, check_bytes),
        TreeGroup(stash, m, nu, True, check_bytes),
    )
    return tuple(group for group in both if group.num_trees)


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
        raise ParameterError(f"tau is {tau}; a position has at least one value")
    if policy == "rows":
        for tensor in tensors:
            if len(tensor.shape) < 2 or math.prod(tensor.shape[1:]) != tau:
                raise ParameterError(f"{tensor.name}: rows of {tensor.shape} are not {tau} wide")
        return sum(tensor.shape[0] for tensor in tensors)
    return sum(-(-tensor.numel // tau) for tensor in tensors)


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ParameterError(f"{what} needs a name of printable characters, got {name!r}")
