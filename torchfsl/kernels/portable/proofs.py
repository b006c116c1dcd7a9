"""Portable kernels of proofs: lifted shares summed over leaves, and sums of squares of polynomials.

A share is *lifted* when it is read as a signed integer; see `torchfsl.fsl.dpf.lifts`. The
polynomials are over the field of p = 2**128 - 7 * 2**66 + 1 elements, each of which is here two
little-endian words, `uint64[..., 2]`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchfsl.kernels import ring
from torchfsl.kernels.portable.trees import bits_of, convert, mask_of, shares_of
from torchfsl.types import Array, Bytes, Whole

Words = npt.NDArray[np.uint64]

MODULUS = (1 << 128) - 7 * (1 << 66) + 1
"""A prime; p - 1 is a multiple of 2**66."""

HALF = 32
"""A sum of wide values is given as low + 2**HALF high."""

NARROW = 4
"""Bytes of a value up to which a sum is given whole."""

CARRY_BYTES = 7


def leaf_sums(
    key: bytes, states: Bytes, hints: Bytes, width: int, party: int, num_threads: int = 1
) -> Whole:
    """Lifted shares summed over the leaves of each tree: `int64[2, T, P / width]`, low and high.

    Args:
        key: K_convert, 16 bytes.
        states: `[T, N, 16]`, N below 2**30.
        hints: `[T, P]`; so many bytes of every leaf are converted, a prefix of a hint will do.
        width: l/8, 2, 3, 4 or 6.
        party: 0 lifts into [-2**(l-1), 2**(l-1)), 1 into (-2**(l-1), 2**(l-1)].
        num_threads: for the native twin.

    Returns:
        Sums low + 2**32 high; high is 0 for widths up to 4.
    """
    num_values = hints.shape[1] // width
    out = np.zeros((2, len(states), num_values), dtype=np.int64)
    for tree, leaves in enumerate(states):
        plain = convert(key, leaves, hints.shape[1]).reshape(len(leaves), num_values, width)
        chosen = mask_of(bits_of(leaves))[:, :, None]
        shares = ring.add(plain, hints[tree].reshape(1, -1, width) & chosen)
        out[:, tree] = _lifted_sums(shares[None])[:, 0]
    return out if party == 0 else -out


Job = tuple[bytes, bytes, Bytes, Bytes, Bytes, Bytes]
"""A report: `(key_tree, key_convert, roots, cw, cw_right, hints)`."""


def accumulate_lifted(
    reports: list[Job],
    num_leaves: int,
    party: int,
    width: int,
    acc: Bytes,
    lifted: int,
    num_threads: int = 1,
) -> Whole:
    """`accumulate_batch`, and lifted shares summed over the leaves of each tree.

    Args:
        reports: see `accumulate_batch`, all of one shape.
        num_leaves: below 2**30.
        party: gives the sign in which shares are added, and not that of the sums.
        width: l/8, 2, 3, 4 or 6.
        acc: `[T, N, P]`, changed in place.
        lifted: values of each leaf that are summed, from the first on.
        num_threads: for the native twin.

    Returns:
        `int64[parts, reports, T, lifted]`: as `leaf_sums` of party 0, low and high for width 6, low
        alone for the others.
    """
    parts = 1 + (width > 4)
    out = np.zeros((parts, len(reports), len(acc), lifted), dtype=np.int64)
    for i, (key_tree, key_convert, roots, cw, cw_right, hints) in enumerate(reports):
        shares = shares_of(key_tree, key_convert, roots, cw, cw_right, num_leaves, hints, width)
        sums = acc.reshape(shares.shape)
        sums[...] = ring.add(sums, shares) if party == 0 else ring.sub(sums, shares)
        out[:, i] = _lifted_sums(shares[:, :, :lifted])[:parts]
    return out


def _lifted_sums(shares: Bytes) -> Whole:
    """Ring values `[T, N, n, width]` read as signed and summed over leaves: `[2, T, n]`."""
    whole = ring.to_int64(shares)
    if shares.shape[-1] <= NARROW:
        return np.stack([whole.sum(axis=1), np.zeros_like(whole[:, 0])])
    return np.stack([(whole & ((1 << HALF) - 1)).sum(axis=1), (whole >> HALF).sum(axis=1)])


def carry_sums(key: bytes, states: Bytes, hints: Bytes, party: int) -> tuple[Whole, Whole]:
    """Lifted shares of seven bytes, over trees and over leaves.

    Args:
        key: K_convert of the carry trees, 16 bytes.
        states: `[T, N, 16]`, N below 2**30.
        hints: `[T, 7 slots]`, of one slot or an even number of them.
        party: as for `leaf_sums`.

    Returns:
        `int64[N slots]`, the sum over all trees at every slot of every leaf, and
        `int64[T, slots, 2]`, over the leaves of each tree, the low 32 bits of the sum and the rest.

    Raises:
        ValueError: hints of another size.
    """
    slots = hints.shape[1] // CARRY_BYTES
    if hints.shape[1] % CARRY_BYTES or not slots or (slots > 1 and slots % 2):
        raise ValueError("hints must hold one value of 7 bytes, or an even number of such values")
    carried = np.zeros((states.shape[1], slots), dtype=np.int64)
    sums = np.zeros((len(states), slots, 2), dtype=np.int64)
    for tree, leaves in enumerate(states):
        plain = wide(convert(key, leaves, hints.shape[1]), slots)
        chosen = np.negative(bits_of(leaves).astype(np.uint64))[:, None]
        words = plain + (wide(hints[tree : tree + 1], slots) & chosen)
        lifted = signed(words) if party == 0 else -signed(words)
        carried += lifted
        low = (lifted & ((1 << HALF) - 1)).sum(axis=0)
        sums[tree, :, 0] = low & ((1 << HALF) - 1)
        sums[tree, :, 1] = (lifted >> HALF).sum(axis=0) + (low >> HALF)
    return carried.reshape(-1), sums


def wide(data: Bytes, slots: int) -> Words:
    """Values of seven bytes `[M, 7 slots]` as words `[M, slots]`."""
    words = np.zeros((len(data), slots, 8), dtype=np.uint8)
    words[..., :CARRY_BYTES] = data.reshape(len(data), slots, CARRY_BYTES)
    numbers: Words = words.view("<u8")[..., 0]
    return numbers


def signed(words: Words) -> Whole:
    """The lower seven bytes as signed integers in [-2**55, 2**55)."""
    numbers: Whole = (words << np.uint64(8)).view(np.int64) >> 8
    return numbers


# --- the field ----------------------------------------------------------------------------------


def square_sums(values: Words, root: Words, num_threads: int = 1) -> Words:
    """Sums of squares of polynomials at all points, `[2 P, 2]`, from their values at half of them.

    Args:
        values: `[P, L, 2]`, P a power of two from 2 to 2**23: values of L polynomials of degree
            below P at the powers of root**2.
        root: `[2]`, of order 2 P.
        num_threads: for the native twin.

    Returns:
        At root**k the sum over the polynomials of their squares.

    Raises:
        ValueError: other shapes, or an element that is not below p.
    """
    order = len(values)
    if values.ndim != 3 or values.shape[2] != 2 or root.shape != (2,):
        raise ValueError("values must be of shape [P, L, 2], and root of shape [2]")
    if order < 2 or order & (order - 1) or order >> 24:
        raise ValueError("the number of points must be a power of two from 2 to 2**23")
    numbers = integers(values)
    own = int(integers(root[None])[0])
    if own >= MODULUS or (numbers.size and numbers.max() >= MODULUS):
        raise ValueError("a field element must be below the modulus")
    square = own * own % MODULUS
    back = transform(numbers, pow(square, -1, MODULUS)) * pow(order, -1, MODULUS) % MODULUS
    both = transform(np.concatenate([back, np.zeros_like(back)]), own)
    return words_of((both * both).sum(axis=1) % MODULUS)


def query_proof(
    proof: Words,
    num_wires: int,
    order: int,
    root: Words,
    point: Words,
    parts: Sequence[Whole],
    scales: Words,
    tail: Words,
) -> tuple[Words, Words]:
    """The values that one verifier opens of a proof at a point; see `torchfsl.crypto.flp`.

    Args:
        proof: `[L + C, 2]`, the verifier's share: L wires' seeds, then a polynomial's coefficients.
        num_wires: L, at least 1.
        order: P, a power of two up to 2**23.
        root: `[2]`, w of order P.
        point: `[2]`, r.
        parts: `int64[K, L]` each.
        scales: `[len(parts), 2]`.
        tail: `[t, L, 2]`, elements, K + t below P.

    Returns:
        `[L + 1, 2]`, each wire's polynomial of degree below P at r, then the polynomial of the
        coefficients at r. A wire's polynomial goes through its seed at w**0, and at w**1 to w**K
        through the sum of the parts' rows, each times its scale. At the next powers it goes through
        the rows of the tail, and at all further powers through 0. `[P, 2]`, the polynomial of the
        coefficients at all powers of w.

    Raises:
        ValueError: other shapes, or an element that is not below p.
    """
    if proof.ndim != 2 or proof.shape[1:] != (2,) or not 0 < num_wires < len(proof):
        raise ValueError("a proof must have shape [n, 2]: a seed per wire, then coefficients")
    if order < 1 or order & (order - 1) or order >> 24:
        raise ValueError("the number of points must be a power of two up to 2**23")
    num_rows = len(parts[0]) if parts else 0
    if any(part.shape != (num_rows, num_wires) for part in parts):
        raise ValueError(f"each part must be [{num_rows}, {num_wires}]")
    if tail.ndim != 3 or tail.shape[1:] != (num_wires, 2):
        raise ValueError(f"tail must be [t, {num_wires}, 2]")
    if num_rows + len(tail) >= order:
        raise ValueError("parts and tail together must have fewer rows than the order")
    if scales.shape != (len(parts), 2) or root.shape != (2,) or point.shape != (2,):
        raise ValueError("scales must be of shape [parts, 2], root and point of shape [2]")
    given = [integers(words) for words in (proof, scales, tail, root[None], point[None])]
    if any(numbers.size and numbers.max() >= MODULUS for numbers in given):
        raise ValueError("a field element must be below the modulus")
    numbers, factors, behind, (w,), (r,) = given
    start = pow(order, -1, MODULUS)
    scaled = np.array([start * power % MODULUS for power in powers(r, order)], dtype=object)
    weights = transform(scaled, pow(w, -1, MODULUS))[:, None]
    wires = weights[0] * numbers[:num_wires]
    for part, scale in zip(parts, factors, strict=True):
        wires = wires + scale * (weights[1 : 1 + num_rows] * part.astype(object)).sum(axis=0)
    first = 1 + num_rows
    wires = (wires + (weights[first : first + len(tail)] * behind).sum(axis=0)) % MODULUS
    coefficients = numbers[num_wires:].tolist()
    at_point = (
        sum(c * power for c, power in zip(coefficients, powers(r, len(coefficients)), strict=True))
        % MODULUS
    )
    folded = np.array([sum(coefficients[k::order]) % MODULUS for k in range(order)], dtype=object)
    opened = np.array([*wires.tolist(), at_point], dtype=object)
    return words_of(opened), words_of(transform(folded, w))


def field_transform(values: Words, root: Words) -> Words:
    """A polynomial's values at the powers of a root, from its coefficients: `[n, 2]` to `[n, 2]`.

    Args:
        values: coefficients, n a power of two up to 2**23.
        root: `[2]`, of order n.

    Raises:
        ValueError: other shapes, or an element that is not below p.
    """
    order = len(values)
    if values.shape != (order, 2) or root.shape != (2,):
        raise ValueError("values must be of shape [n, 2], and root of shape [2]")
    if not order or order & (order - 1) or order >> 24:
        raise ValueError("the number of points must be a power of two up to 2**23")
    numbers, own = integers(values), int(integers(root[None])[0])
    if own >= MODULUS or numbers.max() >= MODULUS:
        raise ValueError("a field element must be below the modulus")
    return words_of(transform(numbers, own))


@functools.lru_cache(maxsize=64)
def powers(base: int, count: int) -> tuple[int, ...]:
    """`base**0, ..., base**(count - 1)` modulo p."""
    result, value = [], 1
    for _ in range(count):
        result.append(value)
        value = value * base % MODULUS
    return tuple(result)


def transform(coefficients: Array, root: int) -> Array:
    """Values of polynomials at all powers of a root of unity.

    Args:
        coefficients: `object[n, ...]`, n a power of two: coefficient i of every polynomial.
        root: of order n.

    Returns:
        `object[n, ...]`: row k has the values at root**k. Law: under the root's inverse, and
        divided by n, the values give the coefficients back.
    """
    size = len(coefficients)
    if size == 1:
        return coefficients % MODULUS
    half = root * root % MODULUS
    even, odd = transform(coefficients[0::2], half), transform(coefficients[1::2], half)
    turns = np.array(powers(root, size // 2), dtype=object)
    odd = odd * turns.reshape(-1, *(1,) * (odd.ndim - 1)) % MODULUS
    return np.concatenate([even + odd, even - odd]) % MODULUS


def integers(words: Words) -> Array:
    """Elements `uint64[..., 2]` as Python's integers, `object[...]`."""
    numbers: Array = words[..., 0].astype(object) + (words[..., 1].astype(object) << 64)
    return numbers


def words_of(numbers: Array) -> Words:
    """Inverse of `integers`, one-dimensional, for numbers below 2**128."""
    data = b"".join(number.to_bytes(16, "little") for number in numbers.tolist())
    return np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(-1, 2)
