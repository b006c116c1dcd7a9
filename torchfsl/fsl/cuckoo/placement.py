"""Cuckoo table: at most one selected row in each bin, by three public permutations.

Sub-table i (i = 0, 1, 2) cuts the permuted index space P_i into `num_bins / 3` bins of `theta`
consecutive positions: row x lies in bin P_i(x) // theta of sub-table i at position
P_i(x) % theta. So each row has three candidate bins, always distinct, and all bins have one size.
The paper (section 4, Fig. 2) hashes rows into bins of uneven size whose candidates may coincide,
which fails far more often for small k; `docs/specification/cuckoo-bound.md` has the bound.

Matching is exact and silent: a row that finds no place goes to the stash, then to the caller's
residual. Never is a table re-hashed for one client, since a retry would tell the servers that its
set does not fit the public seed.
"""

from __future__ import annotations

import functools
import mmap
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.fsl.suite import NUM_HASHES
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.segments import ceil_div
from torchfsl.types import Indices

Slots = npt.NDArray[np.uint32]

_KEYS_AT_ONCE: Final = 1 << 16
"""Keys that `rows_at` looks at together, at least."""

IN_MEMORY_BYTES: Final = 1 << 28
"""Permutations up to this size lie in memory, larger ones in a nameless temporary file."""

_DONTNEED: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)


@functools.lru_cache(maxsize=16)
def permutations(hash_seed: bytes, label: str, m: int) -> Slots:
    """The three public permutations of [0, m), `uint32[3, m]`, read-only.

    P_i is the stable order of m 64-bit keys from AES-CTR under a key derived from the hash seed,
    the segment's name and i: uniform up to ties (probability below m**2 / 2**65 of any), and a
    tie is broken by the index, so every party computes the same.
    """
    orders = (_order(hash_seed, label, m, i) for i in range(NUM_HASHES))
    if 4 * NUM_HASHES * m > IN_MEMORY_BYTES:
        return _in_file(orders, m)
    table = np.empty((NUM_HASHES, m), dtype=np.uint32)
    for i, order in enumerate(orders):
        table[i] = order
    table.setflags(write=False)
    return table


def rows_at(hash_seed: bytes, label: str, m: int, i: int, places: range) -> tuple[Slots, Slots]:
    """Which rows permutation i brings to these places, without the whole of it.

    A place is the index of a key and its row the key's rank, so the keys of the places are sorted
    and those of others counted below them, as many at a time. Working memory: 48 bytes a place.

    Returns:
        Rows, increasing, and the place of each: `uint32[len(places)]`. Law: `permutations(..)[i]`
        of the rows are the places.
    """
    key = _order_key(hash_seed, label, m, i)
    order = kernels().stable_order(own := _keys(key, places), num_threads())
    own = own[order]
    ranks = np.arange(len(own), dtype=np.int64)
    step = max(len(own), _KEYS_AT_ONCE)
    sides: tuple[tuple[range, Literal["left", "right"]], ...] = (
        (range(places.start), "right"),  # of equal keys the first is the lower
        (range(places.stop, m), "left"),
    )
    for others, side in sides:
        for start in range(others.start, others.stop, step):
            part = _keys(key, range(start, min(others.stop, start + step)))
            part.sort()
            ranks += np.searchsorted(part, own, side=side)
    return ranks.astype(np.uint32), order + np.uint32(places.start)


def _order_key(hash_seed: bytes, label: str, m: int, i: int) -> bytes:
    context = kdf.frame(label.encode(), bytes([i]), m.to_bytes(8, "little"))
    return kdf.derive(hash_seed, kdf.LABEL_PERMUTATION, context)


def _keys(key: bytes, places: range) -> npt.NDArray[np.uint64]:
    """The keys of these places."""
    first = places.start // 2  # two a block
    words = kdf.stream(key, 8 * (places.stop - 2 * first), first=first).view("<u8")
    return words[places.start - 2 * first :]


def set_aside(table: Slots) -> None:
    """Let the system take back the memory of permutations that lie in a file; they go on to work.

    For a server, which reads each of them from one end to the other and then not for long.
    """
    mapped = _mapping_of(table)
    if mapped is not None and _DONTNEED is not None:
        mapped.madvise(_DONTNEED)


def _mapping_of(table: Slots) -> mmap.mmap | None:
    """The mapped file behind a table or a part of one, if there is any."""
    base: object = table
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


def _order(hash_seed: bytes, label: str, m: int, i: int) -> Slots:
    keys = kdf.stream(_order_key(hash_seed, label, m, i), 8 * m).view("<u8")
    return np.asarray(kernels().stable_order(keys, num_threads()), dtype=np.uint32)


def _in_file(orders: Iterable[Slots], m: int) -> Slots:
    """The orders as an array that lies in a file; the file goes with the array.

    Raises:
        OSError: the folder for temporary files (`TMPDIR`) is full; a note says what is needed.
    """
    try:
        return _written(orders, m)
    except OSError as error:
        error.add_note(
            f"permutations of {m} rows take {4 * NUM_HASHES * m} bytes of the folder for temporary "
            f"files, {tempfile.gettempdir()}: make room there, or set TMPDIR to another folder"
        )
        raise


def _written(orders: Iterable[Slots], m: int) -> Slots:
    with tempfile.TemporaryFile(prefix="torchfsl-", buffering=0) as file:
        for order in orders:  # written, not copied into a mapping: see `Spool.hold`
            left = order.data.cast("B")
            while left:
                left = left[file.write(left) :]
        mapped = mmap.mmap(file.fileno(), 4 * NUM_HASHES * m, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype=np.uint32).reshape(NUM_HASHES, m)


def candidates(table: Slots, indices: Indices, num_bins: int, theta: int) -> Slots:
    """Candidate bins of the rows `indices`: `uint32[3, k]`, sub-table i in row i."""
    offsets = np.arange(NUM_HASHES, dtype=np.uint32) * np.uint32(num_bins // NUM_HASHES)
    bins = np.take(table, indices, axis=1)
    bins //= np.uint32(theta)
    bins += offsets[:, None]
    return bins


def match(choices: Slots, num_bins: int) -> Indices:
    """Match items to bins, exactly and greedily in item order: `int64[k]`, the bin or -1.

    An item that was matched stays matched (it may move). An item is left out only when no
    rearrangement of the items before it makes room. Matchable sets form a matroid, so with items
    in order of falling weight the total weight matched is the greatest possible.

    Both backends follow one rule, so that both give the same table. For each item they search
    breadth-first over alternating paths that start with the item. A search takes candidate bins
    in sub-table order and visits each bin once. The first free bin found ends the search, and
    the path back is flipped.
    """
    return np.asarray(kernels().match(choices, num_bins), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Placement:
    """The bins of one client's rows. Secret: it depends on the selected rows.

    Attributes:
        item: `int64[num_bins + stash]`, the item (position in `indices`) of a tree, -1 if dummy.
        position: `uint64[num_bins + stash]`, alpha within the tree's domain; 0 for dummies, to be
            replaced by random positions.
        unmatched: items that found no place, in item order.
    """

    item: Indices = field(repr=False)
    position: npt.NDArray[np.uint64] = field(repr=False)
    unmatched: Indices = field(repr=False)


def place(
    table: Slots | None, indices: Indices, num_bins: int, theta: int, stash: int
) -> Placement:
    """Fill the bins, then the stash, with the rows `indices` in the given order of preference.

    Args:
        table: permutations of the index space; None when there are no bins (full-domain trees).
        indices: distinct rows in [0, m).
        num_bins: B, a multiple of 3; 0 for full-domain trees.
        theta: rows a bin.
        stash: trees over the whole index space after the bins.
    """
    num_items = len(indices)
    item = np.empty(num_bins + stash, dtype=np.int64)
    item.fill(-1)
    position = np.zeros(num_bins + stash, dtype=np.uint64)
    left = np.arange(num_items)
    if table is not None and num_items:
        bins = match(candidates(table, indices, num_bins, theta), num_bins)
        matched, left = (bins >= 0).nonzero()[0], (bins < 0).nonzero()[0]
        bins = bins[matched]
        sub_table = bins // (num_bins // NUM_HASHES)
        item[bins] = matched
        position[bins] = table[sub_table, indices[matched]] % theta
    stashed = left[:stash]
    if len(stashed):
        item[num_bins : num_bins + len(stashed)] = stashed
        position[num_bins : num_bins + len(stashed)] = indices[stashed]
    return Placement(item, position, left[stash:])


def place_in_bins(bins: PublicBins, indices: Indices) -> Placement:
    """Put the rows `indices` into public bins, the first in the given order of those of one bin.

    Args:
        bins: the round's, with a tree each.
        indices: distinct rows in [0, m).
    """
    owner, within = bins.part(bins.places(indices))
    used, first = np.unique(owner.astype(np.int64), return_index=True)
    item = np.full(bins.count, -1, dtype=np.int64)
    item[used] = first
    position = np.zeros(bins.count, dtype=np.uint64)
    position[used] = within[first]
    left = np.setdiff1d(np.arange(len(indices)), first, assume_unique=True)
    return Placement(item, position, left)


def bin_slots(table: Slots, theta: int, padded_theta: int) -> Slots:
    """Where each row lies in the bin layout `[num_bins, padded_theta]`, flattened: `uint32[3, m]`.

    Bins are padded to whole leaf blocks, `padded_theta` >= `theta`.
    """
    bins_each = ceil_div(table.shape[1], theta)
    offsets = np.arange(NUM_HASHES, dtype=np.uint32) * np.uint32(bins_each * padded_theta)
    slots = slots_within(table, theta, padded_theta)
    slots += offsets[:, None]
    return slots


def slots_within(table: Slots, theta: int, padded_theta: int) -> Slots:
    """The same within a sub-table: `uint32`, of the shape of `table`, a new array."""
    slots = table.copy()
    if padded_theta > theta:  # every bin before a row's own moves it on
        bins = table // np.uint32(theta)
        bins *= np.uint32(padded_theta - theta)
        slots += bins
    return slots
