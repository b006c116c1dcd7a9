"""Native kernels (C++, SIMD across trees, threads, GIL released). Bytes equal to `portable`'s.

Letters: T trees, d levels, N leaves with d = ceil(log2 N), P payload bytes a leaf. A *state* is 16
bytes: a seed whose lowest bit (bit 0 of byte 0) is replaced by the control bit. Arrays are `uint8`
and C-contiguous unless said. `width` is l/8, the bytes of one ring value: 2, 3, 4, 6, 8 or 16.
`num_threads` is the greatest number of threads to use, 0 for every core.

Every function raises ValueError for a wrong dtype, shape, layout or range, and TypeError for what
is not an array (or a read-only array where one is written to). The CPU path is the fastest that the
machine has, or the one named by the environment variable `TORCHFSL_CPU_PATH` (`portable`; `aesni`,
`vaes256` or `vaes512` on x86; `arm`); a name that the machine cannot run raises ValueError at the
first call.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]
_Positions = npt.NDArray[np.uint64]

def tree_gen(
    key: bytes,
    roots0: _Bytes,
    roots1: _Bytes,
    alpha: _Positions,
    depth: int,
    num_threads: int = 1,
) -> tuple[_Bytes, _Bytes, _Bytes, _Bytes]:
    """Generate T trees.

    Args:
        key: K_tree, 16 bytes.
        roots0: `[T, 16]` root states of party 0, control bit 0.
        roots1: `[T, 16]` root states of party 1, control bit 1.
        alpha: `uint64[T]`, the selected leaf, in [0, 2**depth).
        depth: d, in [0, 56].
        num_threads: as above.

    Returns:
        `cw [d, T, 16]`, `cw_right [d, T]` of 0 and 1, and the parties' states at alpha, `[T, 16]`
        each. Running time and addresses do not depend on alpha or on seeds.
    """

def tree_eval(
    key: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    num_leaves: int,
    num_threads: int = 1,
) -> _Bytes:
    """States of one party at every leaf, `[T, num_leaves, 16]`; N in [1, 2**48]."""

def tree_path(
    key: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    x: _Positions,
    num_threads: int = 1,
) -> tuple[_Bytes, _Bytes]:
    """States of one party at leaf `x uint64[T]` of each tree, `[T, 16]`, and bits `[T]`.

    The XOR of both parties' bits is [x < alpha]. Running time and addresses depend neither on seeds
    nor on x.
    """

def convert(key: bytes, states: _Bytes, num_bytes: int) -> _Bytes:
    """Conv: `[M, 16]` to `[M, num_bytes]`, `num_bytes` in [1, 2**24]; control bits are ignored."""

def hint_gen(
    key: bytes,
    leaf0: _Bytes,
    leaf1: _Bytes,
    values: _Bytes,
    slots: _Positions,
    nu: int,
    width: int,
    num_threads: int = 1,
) -> _Bytes:
    """Hints CW = (-1)^{t_1} (beta - Conv(s_0) + Conv(s_1)), `[T, P]` with P = row bytes << nu.

    Args:
        key: K_convert of this hint's epoch, 16 bytes.
        leaf0: `[T, 16]` party 0's states at alpha.
        leaf1: `[T, 16]` party 1's states at alpha.
        values: `[T, P >> nu]` ring values of the selected row.
        slots: `uint64[T]` in [0, 2**nu), the selected row within the leaf block.
        nu: early termination.
        width: l/8.
        num_threads: as above.
    """

def accumulate(
    key_tree: bytes,
    key_convert: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    num_leaves: int,
    hints: _Bytes,
    party: int,
    width: int,
    acc: _Bytes,
    num_threads: int = 1,
) -> None:
    """Add one party's output shares of T trees to `acc [T, N, P]`, in place; `hints [T, P]`.

    Law: the two parties' accumulators sum to the hint's value at alpha and to 0 elsewhere.
    """

def accumulate_batch(
    reports: list[tuple[bytes, bytes, _Bytes, _Bytes, _Bytes, _Bytes]],
    num_leaves: int,
    party: int,
    width: int,
    acc: _Bytes,
    num_threads: int = 1,
) -> None:
    """`accumulate` for several reports, part by part of `acc`: it passes through the cache once.

    A report is `(key_tree, key_convert, roots, cw, cw_right, hints)`; all have one shape. Nothing
    is added if one is refused.
    """

def accumulate_lifted(
    reports: list[tuple[bytes, bytes, _Bytes, _Bytes, _Bytes, _Bytes]],
    num_leaves: int,
    party: int,
    width: int,
    acc: _Bytes,
    lifted: int,
    num_threads: int = 1,
) -> npt.NDArray[np.int64]:
    """`accumulate_batch`, and lifted shares summed over leaves; see `portable.proofs`.

    Running time and addresses depend on the shapes alone.
    """

def answer(
    key_tree: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    num_leaves: int,
    table: _Bytes,
    num_threads: int = 1,
) -> _Bytes:
    """XOR over the leaves with control bit 1 of `table [T or 1, N, R]`: `[T, R]`.

    Law: the two parties' answers XOR to the table's row at alpha.
    """

def answer_bits(
    key_tree: bytes,
    key_bits: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    words: _Bytes,
    table: _Bytes,
    num_threads: int = 1,
) -> _Bytes:
    """Answers `[T, R]` by one bit a row of the table `[T or 1, M, R]`; see `portable.trees`."""

def gather(
    acc: _Bytes,
    slots: npt.NDArray[np.uint32] | npt.NDArray[np.uint64],
    out: _Bytes,
    width: int,
    num_threads: int = 1,
) -> None:
    """out[x] += sum over e of acc[slots[e, x]], in place.

    Args:
        acc: `[S, W]` rows of ring values.
        slots: `uint32` or `uint64 [E, m]`, public positions in [0, S); checked before any write.
        out: `[m, W]`.
        width: l/8.
        num_threads: as above.
    """

def check_gen(
    key: bytes,
    leaf0: _Bytes,
    leaf1: _Bytes,
    leaf: npt.NDArray[np.uint64],
    first_tree: int,
    num_threads: int = 1,
) -> _Bytes:
    """Check words `[T, 32]`; see `portable.checks.check_gen`."""

def verify(
    key_tree: bytes,
    key_check: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    num_leaves: int,
    check_words: _Bytes,
    first_tree: int,
    key_fold: bytes,
    delta_trees: _Bytes,
    delta_low: _Bytes,
    delta_high: _Bytes,
    num_threads: int = 1,
) -> bytes:
    """Fold of the corrected leaf hashes, 16 bytes; see `portable.checks.verify`.

    Law: equal at both parties for honest trees.
    """

def authenticate(
    key_tree: bytes,
    key_mac: bytes,
    roots: _Bytes,
    cw: _Bytes,
    cw_right: _Bytes,
    num_leaves: int,
    table: _Bytes,
    digests: _Bytes,
    num_threads: int = 1,
) -> tuple[_Bytes, _Bytes]:
    """Answers `[T, R]` as `answer` gives them, and tags `[T, 16]`; see `portable.checks`."""

def authenticate_batch(
    requests: list[tuple[bytes, bytes, _Bytes, _Bytes, _Bytes]],
    num_leaves: int,
    table: _Bytes,
    digests: _Bytes,
    num_threads: int = 1,
) -> list[tuple[_Bytes, _Bytes]]:
    """`authenticate` for several requests; see `portable.checks.authenticate_batch`."""

def tags(
    key_mac: bytes, leaf0: _Bytes, leaf1: _Bytes, digests: _Bytes, num_threads: int = 1
) -> _Bytes:
    """Tags `[T, 16]` that honest answers XOR to; see `portable.checks.tags`."""

def row_digests(key: bytes, rows: _Bytes, num_threads: int = 1) -> _Bytes:
    """Keyed digests of rows, `[M, R]` to `[M, 16]`, R in [1, 2**24]; see `portable.checks`."""

def field_multiply(
    left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32], num_threads: int = 1
) -> npt.NDArray[np.uint32]:
    """`left [R, C]` times `right [C, D]`, modulo 2**32 - 5: `[R, D]`; see `portable.field`.

    Numbers are below 2**32 - 5; C is at most 2**24. Running time depends on the shapes alone.
    """

@overload
def ring_multiply(
    left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32], num_threads: int = 1
) -> npt.NDArray[np.uint32]: ...
@overload
def ring_multiply(
    left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64], num_threads: int = 1
) -> npt.NDArray[np.uint64]:
    """`left [R, C]` times `right [C, D]`, modulo 2**32 or 2**64: `[R, D]`; an empty sum is 0.

    Running time and addresses depend on the shapes alone.
    """

def leaf_sums(
    key: bytes, states: _Bytes, hints: _Bytes, width: int, party: int, num_threads: int = 1
) -> npt.NDArray[np.int64]:
    """Lifted shares summed over leaves, `int64[2, T, values]`; see `portable.proofs`.

    Running time and addresses depend on the shapes alone, as for the next two.
    """

def carry_sums(
    key: bytes, states: _Bytes, hints: _Bytes, party: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Lifted shares of seven bytes over trees and over leaves; see `portable.proofs`."""

def square_sums(
    values: npt.NDArray[np.uint64], root: npt.NDArray[np.uint64], num_threads: int = 1
) -> npt.NDArray[np.uint64]:
    """Sums of squares of polynomials, `uint64[P, L, 2]` to `[2 P, 2]`; see `portable.proofs`."""

def query_proof(
    proof: npt.NDArray[np.uint64],
    num_wires: int,
    order: int,
    root: npt.NDArray[np.uint64],
    point: npt.NDArray[np.uint64],
    parts: Sequence[npt.NDArray[np.int64]],
    scales: npt.NDArray[np.uint64],
    tail: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Wires and a polynomial at a point, `[L + 1, 2]`, and its values `[P, 2]`: `portable.proofs`.

    Running time and addresses depend on the shapes alone, as for the next one.
    """

def field_transform(
    values: npt.NDArray[np.uint64], root: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Values at the powers of a root from coefficients, `[n, 2]`; see `portable.proofs`."""

def match(candidates: npt.NDArray[np.uint32], num_bins: int) -> npt.NDArray[np.int64]:
    """Exact greedy matching in item order: `uint32[3, k]` bins to `int64[k]`, the bin or -1.

    The rule is that of `cuckoo.match`. Running time depends on the candidates.
    """

def stable_order(keys: npt.NDArray[np.uint64], num_threads: int = 1) -> npt.NDArray[np.uint32]:
    """Indices `uint32[m]` of the keys `uint64[m]` in their order, equal ones in their own.

    At most 2**32 keys. Running time depends on the keys.
    """

def aes_ceiling(num_blocks: int, num_threads: int = 1) -> float:
    """Seconds in which each thread hashes `num_blocks` blocks of a buffer in its own cache.

    The rate that no kernel can exceed on this machine, for benchmarks.
    """

def cpu_path() -> str:
    """Name of the CPU path in use."""
