"""Fully linear proofs on shared values (Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai 2019).

`SumsOfSquares`: the prover knows a vector that the verifiers hold in additive shares. The vector is
cut into *calls* of `arity` values. For each call the verifiers want a share of its sum of squares,
and be sure of it. The layout is that of the VDAF draft, with one gadget and no joint randomness.
Let w be a root of unity of order P. Each place i of a call has a *wire*, a polynomial f_i. It goes
through a random seed at w**0 and through the i-th value of call k at w**k. Let p be the sum of all
f_i**2, so that p(w**k) is the sum of squares of call k. The proof is the seeds and the coefficients
of p. The verifiers evaluate shares of all f_i and of p at one random point r. They open these
shares and check that p(r) = sum f_i(r)**2.

The field has q elements. A proof about other values, or with another p, passes with chance
(2 P - 2) / (q - P) over r. For this, r must be drawn after both shares of values and proof are
fixed. At *one* point all opened values are uniform except p(r), which follows from the others. At
two points they are not uniform, so verifiers query a proof only once, ever.

Values may be integers. A share is then a sum of `int64` matrices, each times a scale. Shares add up
over the integers or modulo q, as the caller likes. Elements are words `[n, 2]`.

`ZeroOrSame`: every value c is 0 or one number w, the same for all, with c and w in additive shares.
For integers that are small compared with q, the statement follows from sum c**2 (c - w)**2 = 0,
since no term is negative. Other proofs show that the integers are small. The gadget has degree 4,
with a wire g of w and `arity` wires f_i of values. The prover sends the 4 P - 3 coefficients of
p = sum f_i**2 (f_i - g)**2. A false proof passes with chance (4 P - 4) / (q - P), and one query of
a proof tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchfsl.crypto import field128
from torchfsl.crypto.field128 import MODULUS
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.kernels.portable.proofs import Words, words_of
from torchfsl.types import Whole


@dataclass(frozen=True, slots=True)
class Inputs:
    """The values of the calls, or one verifier's share of them.

    Attributes:
        parts: `(int64[body calls, arity], scale)`; the sum of matrices times scales is the calls.
        tail: further calls, each of up to `arity` values; integers, taken modulo q.
    """

    parts: Sequence[tuple[Whole, int]] = field(repr=False)
    tail: Sequence[Sequence[int]] = field(repr=False, default=())


@dataclass(frozen=True, slots=True)
class Query:
    """One verifier's share of what is opened, all wires at r and p(r) behind them, and of outputs.

    `outputs` are shares of every call's sum of squares, which stay with the verifier.
    """

    opened: Words = field(repr=False)
    outputs: list[int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SumsOfSquares:
    """The shape of a proof: public.

    Attributes:
        num_calls: body and tail together.
        arity: values a call, and wires.
    """

    num_calls: int
    arity: int

    @property
    def order(self) -> int:
        """P, a power of two above `num_calls`: points that the seeds and the calls lie at."""
        return 1 << self.num_calls.bit_length()

    @property
    def num_elements(self) -> int:
        """Field elements of a proof: a seed a wire and 2 P - 1 coefficients."""
        return self.arity + 2 * self.order - 1

    def prove(self, inputs: Inputs, seeds: Words) -> Words:
        """The proof, `num_elements` of the field.

        Args:
            inputs: the values themselves.
            seeds: `arity` uniform secret elements, used once.
        """
        (root,) = field128.words([field128.root_of_unity(2 * self.order)])
        squares = kernels().square_sums(self._points(inputs, seeds), root, num_threads())
        coefficients = interpolated(squares)
        assert not coefficients[-1].any()  # the degree is 2 P - 2
        return np.concatenate([seeds, coefficients[:-1]])

    def query(self, inputs: Inputs, proof: Words, point: int) -> Query:
        """One verifier's share of wires and p at the point, and of the calls' sums of squares."""
        tail = self._tail(inputs)
        assert len(inputs.parts[0][0]) + len(tail) == self.num_calls
        opened, values = ask(proof, self.arity, self.order, point, inputs.parts, tail)
        return Query(opened, field128.integers(values[1 : 1 + self.num_calls]))

    def accepts(self, opened: Words) -> bool:
        """Whether what was opened, both shares added, fits."""
        *wires, at_point = field128.integers(opened)
        return sum(wire * wire for wire in wires) % MODULUS == at_point

    def point(self, key: bytes) -> int:
        """See `draw_point`."""
        return draw_point(self.order, key)

    def _points(self, inputs: Inputs, seeds: Words) -> Words:
        """The wires at the powers of w, `uint64[P, arity, 2]`: seeds, calls, zeros."""
        points = np.zeros((self.order, self.arity, 2), dtype=np.uint64)
        points[0] = seeds
        if [scale for _, scale in inputs.parts] == [1]:
            body = _words_of_signed(inputs.parts[0][0])
        else:
            total = sum(part.astype(object) * scale for part, scale in inputs.parts)
            numbers = np.asarray(total, dtype=object) % MODULUS
            body = words_of(numbers.reshape(-1)).reshape(*numbers.shape, 2)
        tail = self._tail(inputs)
        assert len(body) + len(tail) == self.num_calls
        points[1 : 1 + self.num_calls] = np.concatenate([body, tail])
        return points

    def _tail(self, inputs: Inputs) -> Words:
        """The tail's calls as elements, `uint64[calls, arity, 2]`."""
        tail = np.zeros((len(inputs.tail), self.arity, 2), dtype=np.uint64)
        for own, call in zip(tail, inputs.tail, strict=True):
            own[: len(call)] = field128.words(value % MODULUS for value in call)
        return tail


def ask(
    proof: Words,
    num_wires: int,
    order: int,
    point: int,
    parts: Sequence[tuple[Whole, int]],
    tail: Words,
) -> tuple[Words, Words]:
    """The values that one verifier opens of a proof; see the kernel `query_proof`.

    Args:
        proof: the verifier's share: one seed per wire, then coefficients of p.
        num_wires: number of wires.
        order: P.
        point: r.
        parts: `(int64[calls, num_wires], scale)`.
        tail: further calls, `[calls, num_wires, 2]`.

    Returns:
        All wires and p at r, and p at the powers of w.
    """
    w = field128.root_of_unity(order)
    root, at, *scales = field128.words([w, point, *(scale % MODULUS for _, scale in parts)])
    answer: tuple[Words, Words] = kernels().query_proof(
        np.ascontiguousarray(proof, dtype=np.uint64),
        num_wires,
        order,
        root,
        at,
        [np.ascontiguousarray(part) for part, _ in parts],
        np.array(scales, dtype=np.uint64).reshape(-1, 2),
        tail,
    )
    return answer


def draw_point(order: int, key: bytes) -> int:
    """A uniform point at which a proof may be asked: no root of unity of order P.

    `key`: 16 bytes, secret from the prover until both shares of its proof are fixed.
    """
    count = 1
    while True:
        drawn = field128.integers(field128.uniform(key, count)[-1:])[0]
        if pow(drawn, order, MODULUS) != 1:
            return drawn
        count += 1


def interpolated(values: Words) -> Words:
    """Coefficients from values `[n, 2]` at the powers of `root_of_unity(n)`."""
    size = len(values)
    (back,) = field128.words([pow(field128.root_of_unity(size), -1, MODULUS)])
    numbers = field128.integers(kernels().field_transform(values, back))
    scale = pow(size, -1, MODULUS)
    return field128.words(number * scale % MODULUS for number in numbers)


def _words_of_signed(whole: Whole) -> Words:
    """Signed integers as elements, `uint64[..., 2]`; in time that does not depend on them."""
    negative = whole < 0
    low = whole.astype(np.uint64) + negative.astype(np.uint64)
    high = np.where(negative, np.uint64((MODULUS >> 64) - 1), np.uint64(0))
    high += negative & (low == 0)
    return np.stack([low, high], axis=-1)


@dataclass(frozen=True, slots=True)
class SameQuery:
    """One verifier's share of what is opened, that of w, the other wires, p; and `output`.

    `output` is a share of the sum that must be 0.
    """

    opened: Words = field(repr=False)
    output: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class ZeroOrSame:
    """The shape of a proof: public.

    Attributes:
        num_values: n.
        arity: values a call.
    """

    num_values: int
    arity: int

    @property
    def num_calls(self) -> int:
        """Calls that the values fill."""
        return -(-self.num_values // self.arity)

    @property
    def order(self) -> int:
        """P, a power of two above `num_calls`."""
        return 1 << self.num_calls.bit_length()

    @property
    def num_wires(self) -> int:
        """That of w and those of the values."""
        return 1 + self.arity

    @property
    def num_elements(self) -> int:
        """Field elements of a proof: a seed a wire and 4 P - 3 coefficients."""
        return self.num_wires + 4 * self.order - 3

    def prove(self, values: Whole, same: int, seeds: Words) -> Words:
        """The proof, `num_elements` of the field.

        Args:
            values: `int64[n]`, the values themselves.
            same: w.
            seeds: `num_wires` uniform secret elements, used once.
        """
        order = self.order
        points = np.zeros((order, self.num_wires), dtype=object)
        points[0] = field128.integers(seeds)
        points[1 : 1 + self.num_calls, 0] = same % MODULUS
        points[1 : 1 + self.num_calls, 1:] = self._calls(values).astype(object) % MODULUS
        polynomials = field128.interpolate(points)
        longer = np.concatenate([polynomials, np.zeros_like(polynomials)])
        at = field128.transform(longer, field128.root_of_unity(2 * order))
        roots = at[:, 1:] * (at[:, 1:] - at[:, :1]) % MODULUS
        words = words_of(roots.reshape(-1)).reshape(*roots.shape, 2)
        (root,) = field128.words([field128.root_of_unity(4 * order)])
        squares = kernels().square_sums(words, root, num_threads())
        coefficients = interpolated(squares)
        assert not coefficients[-3:].any()  # the degree is 4 P - 4
        return np.concatenate([seeds, coefficients[:-3]])

    def query(
        self, parts: Sequence[tuple[Whole, Whole, int]], proof: Words, point: int
    ) -> SameQuery:
        """One verifier's share of wires and p at the point, and of the sum.

        Args:
            parts: `(int64[n], int64[], scale)`; their sum, each times its scale, is the share of
                the values, and of w.
            proof: the share of the proof.
            point: of `draw_point`, for `order`.
        """
        laid = []
        for values, same, scale in parts:
            calls = np.empty((self.num_calls, self.num_wires), dtype=np.int64)
            calls[:, 0], calls[:, 1:] = same, self._calls(values)
            laid.append((calls, scale))
        none = np.empty((0, self.num_wires, 2), dtype=np.uint64)
        opened, at_roots = ask(proof, self.num_wires, self.order, point, laid, none)
        outputs = field128.integers(at_roots[1 : 1 + self.num_calls])
        return SameQuery(opened, sum(outputs) % MODULUS)

    def accepts(self, opened: Words) -> bool:
        """Whether what was opened, both shares added, fits."""
        same, *values, at_point = field128.integers(opened)
        total = sum((value * (value - same)) ** 2 % MODULUS for value in values)
        return total % MODULUS == at_point

    def point(self, key: bytes) -> int:
        """See `draw_point`."""
        return draw_point(self.order, key)

    def _calls(self, values: Whole) -> Whole:
        """Values laid into calls, `int64[num_calls, arity]`, zeros behind them."""
        laid = np.zeros(self.num_calls * self.arity, dtype=np.int64)
        laid[: self.num_values] = values
        return laid.reshape(self.num_calls, self.arity)


def cheapest(num_values: int) -> ZeroOrSame:
    """The shape of fewest elements."""
    shapes: list[ZeroOrSame] = []
    order = 2
    while order <= 2 * num_values or not shapes:
        shapes.append(ZeroOrSame(num_values, -(-num_values // (order - 1))))
        order *= 2
    return min(shapes, key=lambda shape: shape.num_elements)
