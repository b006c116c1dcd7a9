"""A fully linear proof about sums of squares (Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai 2019).

The prover knows a vector that the verifiers hold in additive shares. It is cut into *calls* of
`arity` values; for each call the verifiers want a share of its sum of squares, and be sure of it.
Laid out as in the VDAF draft, with one gadget and no joint randomness: for each place i of a call,
its *wire*, a polynomial f_i goes through a random seed at w**0 and through the i-th value of call
k at w**k, w a root of unity of order P. The proof is the seeds and the coefficients of the sum of
all f_i**2, p, whose value at w**k is the sum of squares of call k. The verifiers evaluate shares of
all f_i and of p at one random point r and open them: p(r) = sum f_i(r)**2.

A proof about other values, or with another p, passes with chance (2 P - 2) / (q - P) over r in the
field of q elements, if r is drawn after both shares of values and proof are fixed. At *one* point
all that is opened is uniform but for p(r), which follows from the rest; at two points it is not: a
proof is queried once, ever.

Values may be given as integers: a share is then a sum of `int64` matrices, each times a scale, and
shares add up over the integers or modulo p, as the caller likes.
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
    """What a call is made of, or one verifier's share of it.

    Attributes:
        parts: `(int64[body calls, arity], scale)`; their sum, each times its scale, are the calls.
        tail: further calls, each of up to `arity` values; integers, taken modulo p.
    """

    parts: Sequence[tuple[Whole, int]] = field(repr=False)
    tail: Sequence[Sequence[int]] = field(repr=False, default=())


@dataclass(frozen=True, slots=True)
class Query:
    """One verifier's share of what is opened, `wires` at r and `at_point` = p(r), and of outputs.

    `outputs` are shares of every call's sum of squares, which stay with the verifier.
    """

    wires: list[int] = field(repr=False)
    at_point: int = field(repr=False)
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

    def prove(self, inputs: Inputs, seeds: Sequence[int]) -> list[int]:
        """The proof, `num_elements` of the field.

        Args:
            inputs: the values themselves.
            seeds: `arity` uniform secret elements, used once.
        """
        root = words_of(np.array([field128.root_of_unity(2 * self.order)], dtype=object))[0]
        squares = kernels().square_sums(self._points(inputs, seeds), root, num_threads())
        coefficients = interpolated(squares)
        assert coefficients[-1] == 0  # the degree is 2 P - 2
        return [*seeds, *coefficients[:-1]]

    def query(self, inputs: Inputs, proof: Sequence[int], point: int) -> Query:
        """One verifier's share of wires and p at the point, and of the calls' sums of squares."""
        seeds, coefficients = proof[: self.arity], proof[self.arity :]
        weights = interpolation_weights(self.order, point)
        words = words_of(np.array(weights, dtype=object))
        totals = [weights[0] * seed for seed in seeds]
        for part, scale in inputs.parts:
            sums = weighted_sums(words[1 : 1 + len(part)], part)
            totals = [total + scale * more for total, more in zip(totals, sums, strict=True)]
        first = self.num_calls - len(inputs.tail) + 1
        for weight, call in zip(weights[first:], inputs.tail, strict=False):
            for wire, value in enumerate(call):
                totals[wire] += weight * value
        wires = [total % MODULUS for total in totals]
        return Query(wires, field128.evaluate(coefficients, point), self._outputs(coefficients))

    def accepts(self, wires: Sequence[int], at_point: int) -> bool:
        """Whether what was opened, both shares added, fits."""
        return sum(wire * wire for wire in wires) % MODULUS == at_point % MODULUS

    def point(self, key: bytes) -> int:
        """See `draw_point`."""
        return draw_point(self.order, key)

    def _points(self, inputs: Inputs, seeds: Sequence[int]) -> Words:
        """The wires at the powers of w, `uint64[P, arity, 2]`: seeds, calls, zeros."""
        points = np.zeros((self.order, self.arity, 2), dtype=np.uint64)
        points[0] = words_of(np.array(seeds, dtype=object))
        if [scale for _, scale in inputs.parts] == [1]:
            body = _words_of_signed(inputs.parts[0][0])
        else:
            total = sum(part.astype(object) * scale for part, scale in inputs.parts)
            numbers = np.asarray(total, dtype=object) % MODULUS
            body = words_of(numbers.reshape(-1)).reshape(*numbers.shape, 2)
        points[1 : 1 + len(body)] = body
        first = self.num_calls - len(inputs.tail) + 1
        for k, call in enumerate(inputs.tail, first):
            numbers = np.array([value % MODULUS for value in call], dtype=object)
            points[k, : len(call)] = words_of(numbers)
        return points

    def _outputs(self, coefficients: Sequence[int]) -> list[int]:
        """Values at w**1 ... w**num_calls: modulo x**P - 1 the coefficients fold together."""
        order = self.order
        folded = list(coefficients[:order])
        folded[: order - 1] = field128.add(folded[: order - 1], coefficients[order:])
        values = _transformed(folded, field128.root_of_unity(order))
        return values[1 : 1 + self.num_calls]


def draw_point(order: int, key: bytes) -> int:
    """A uniform point at which a proof may be asked: no root of unity of order P.

    `key`: 16 bytes, secret from the prover until both shares of its proof are fixed.
    """
    count = 1
    while True:
        drawn = field128.uniform(key, count)[-1]
        if pow(drawn, order, MODULUS) != 1:
            return drawn
        count += 1


def interpolation_weights(order: int, point: int) -> list[int]:
    """u_k with f(point) = sum u_k f(w**k) for f of degree below P: sum over j of (r / w**k)**j / P.

    `point`: r.
    """
    scaled, value = [], pow(order, -1, MODULUS)
    for _ in range(order):
        scaled.append(value)
        value = value * point % MODULUS
    return _transformed(scaled, pow(field128.root_of_unity(order), -1, MODULUS))


def _transformed(coefficients: Sequence[int], root: int) -> list[int]:
    """A polynomial's values at the powers of a root of its number of coefficients, a power of 2."""
    words = words_of(np.array(coefficients, dtype=object))
    root_words = words_of(np.array([root], dtype=object))[0]
    values = field128.integers(kernels().field_transform(words, root_words))
    return values


def interpolated(values: Words) -> list[int]:
    """Coefficients from values `[n, 2]` at the powers of `root_of_unity(n)`."""
    size = len(values)
    back = pow(field128.root_of_unity(size), -1, MODULUS)
    found = kernels().field_transform(values, words_of(np.array([back], dtype=object))[0])
    scale = pow(size, -1, MODULUS)
    return [number * scale % MODULUS for number in field128.integers(found)]


def weighted_sums(weights: Words, matrix: Whole) -> list[int]:
    """`weights @ matrix` modulo p: one int a column; `int64[len(weights), columns]`."""
    found = kernels().weighted_sums(weights, np.ascontiguousarray(matrix), num_threads())
    return field128.integers(found)


def _words_of_signed(whole: Whole) -> Words:
    """Signed integers as elements, `uint64[..., 2]`; in time that does not depend on them."""
    negative = whole < 0
    low = whole.astype(np.uint64) + negative.astype(np.uint64)
    high = np.where(negative, np.uint64((MODULUS >> 64) - 1), np.uint64(0))
    high += negative & (low == 0)
    return np.stack([low, high], axis=-1)
