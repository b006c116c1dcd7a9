"""How trees lie over a segment: bins, early termination, stash, and groups of equal trees."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from torchfsl.errors import ParameterError
from torchfsl.fsl.suite import BIT_LEVELS, BIT_WORD_BYTES, CHECK_BYTES, NUM_HASHES, TAG_BYTES
from torchfsl.submodel.segments import MAX_POSITIONS, Segment, ceil_div, ceil_shift


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
        return ceil_shift(self.domain, self.nu)

    @functools.cached_property
    def depth(self) -> int:
        """Levels of correction words."""
        return (self.num_leaves - 1).bit_length()

    @functools.cached_property
    def tree_bytes(self) -> int:
        """Public bytes: 128 + 1 bits a tree and level (single bits packed), and check words."""
        levels = self.num_trees * self.depth
        return levels * 16 + ceil_div(levels, 8) + self.num_trees * self.check_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSegment(Segment):
    """A segment and the trees over it; a dense one has none and travels as additive shares.

    Attributes:
        num_bins: cuckoo bins B, a multiple of 3; 0 for full-domain trees and for `dense`. Public
            bins are k_max.
        theta: positions a bin, at most.
        nu: early termination, a leaf is a block of 2**nu positions.
        stash: trees over the whole index space (all of them, k_max, for full-domain trees).
        check_bytes: 32 when every tree carries a check word, by which the servers refuse a client
            that changes more than one leaf of a bin; 0 in the semi-honest option.
        tag_bytes: 16 when every answer of a retrieval carries a tag, by which a client notices a
            server that alters an answer; 0 without retrieval or in the semi-honest option.
    """

    num_bins: int = 0
    theta: int = 0
    nu: int = 0
    stash: int = 0
    check_bytes: int = 0
    tag_bytes: int = 0

    def __post_init__(self) -> None:
        Segment.__post_init__(self)  # no zero-argument super(): slots make a second class
        where = f"segment {self.name!r}"
        if self.tag_bytes not in ((0, TAG_BYTES) if self.retrieve else (0,)):
            raise ParameterError(f"{where}: expected tag_bytes of 0, or {TAG_BYTES} if retrieved")
        if self.check_bytes not in ((0,) if self.is_dense else (0, CHECK_BYTES)):
            raise ParameterError(f"{where}: expected check_bytes of 0, or {CHECK_BYTES} with trees")
        if self.tag_bytes and not self.check_bytes:
            raise ParameterError(f"{where}: tag_bytes needs check_bytes: set both or neither")
        if self.is_dense:
            if self.k_max != self.m:
                raise ParameterError(f"{where}: expected k_max = {self.m} if dense")
            if (self.num_bins, self.theta, self.nu, self.stash) != (0, 0, 0, 0):
                raise ParameterError(f"{where} is dense: set num_bins, theta, nu and stash to 0")
            return
        if not (0 <= self.nu <= 7 and self.num_bins >= 0 and 0 <= self.stash <= self.k_max):
            raise ParameterError(
                f"{where}: nu is {self.nu}, num_bins {self.num_bins} and stash {self.stash}, "
                f"expected nu in 0..7, num_bins of 0 or more and stash in 0..{self.k_max} (k_max)"
            )
        if self.num_bins == 0:
            if self.stash != self.k_max or self.theta != 0 or self.binned:
                raise ParameterError(f"{where}: expected stash = k_max and theta = 0 without bins")
        elif self.binned:
            if (self.num_bins, self.stash) != (self.k_max, 0):
                raise ParameterError(f"{where}: public bins need num_bins = k_max and stash = 0")
            if self.theta != ceil_div(self.m, self.num_bins):
                raise ParameterError(f"{where}: expected theta = ceil(m / k_max) with public bins")
        elif (
            self.num_bins % NUM_HASHES
            or self.theta < 1
            or self.num_bins != NUM_HASHES * ceil_div(self.m, self.theta)
        ):
            raise ParameterError(f"{where}: expected num_bins = 3 * ceil(m / theta)")
        if self.num_bins * self._padded(BIT_LEVELS if self.by_bits else self.nu) > MAX_POSITIONS:
            raise ParameterError(
                f"{where}: all bins together hold more than {MAX_POSITIONS} rows, the "
                "limit: split the table into smaller segments",
                code="too-many-positions",
            )

    def _padded(self, nu: int) -> int:
        """Positions of a bin, whole leaves of 2**nu."""
        return ceil_shift(self.theta, nu) << nu

    @property
    def mechanism(self) -> str:
        """`dpf` (cuckoo bins), `bins` (public ones), `full-domain` (one tree a row), or `dense`."""
        if self.is_dense:
            return "dense"
        if self.binned:
            return "bins"
        return "dpf" if self.num_bins else "full-domain"

    @property
    def hashes(self) -> int:
        """In how many bins a position lies: 1 of public ones, 3 of a cuckoo table."""
        return 1 if self.binned else NUM_HASHES

    def describe(self) -> dict[str, str | int]:
        """See `Segment`."""
        return {
            **Segment.describe(self),
            "mechanism": self.mechanism,
            "bins": self.num_bins,
            "theta": self.theta,
            "nu": self.nu,
            "stash": self.stash,
        }

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
    def answer_bytes(self) -> int:
        """Bytes one server answers in a retrieval."""
        if not self.retrieve:
            return 0
        return self.num_trees * ((self.row_bytes << self.nu) + self.tag_bytes)

    @property
    def by_bits(self) -> bool:
        """Whether it is fetched outside rounds by one bit a row: retrieved, and without tags."""
        return self.retrieve and not self.tag_bytes

    @property
    def fetch_trees(self) -> TreeSegment:
        """The segment with the trees of a fetch: by bits they end seven levels early."""
        if not self.by_bits:
            return self
        return dataclasses.replace(self, nu=BIT_LEVELS, check_bytes=0)

    @property
    def fetch_bytes(self) -> int:
        """Public bytes of a fetch: all trees and, by bits, a word for each."""
        return self.fetch_trees.tree_bytes + (
            BIT_WORD_BYTES * self.num_trees if self.by_bits else 0
        )

    @property
    def fetch_answer_bytes(self) -> int:
        """Bytes one server answers in a fetch: by bits single rows, whatever a leaf has."""
        return self.num_trees * self.row_bytes if self.by_bits else self.answer_bytes


@functools.lru_cache(maxsize=128)  # asked for many times a report
def _groups(
    num_bins: int, theta: int, stash: int, m: int, nu: int, check_bytes: int
) -> tuple[TreeGroup, ...]:
    both = (
        TreeGroup(num_bins, theta, nu, False, check_bytes),
        TreeGroup(stash, m, nu, True, check_bytes),
    )
    return tuple(group for group in both if group.num_trees)
