"""A fully linear proof that every value is 0 or one number w, the same for all (see `flp`).

The verifiers hold n values c and w in additive shares. For integers that are small beside the
field's modulus, sum c**2 (c - w)**2 = 0 says that each c is 0 or w, since no term is negative; that
they are small is for others to prove. The gadget has degree 4: a wire of w and `arity` wires of
values, p = sum f_i**2 (f_i - g)**2, of which 4 P - 3 coefficients are sent. A false proof passes
with chance (4 P - 4) / (q - P), and one query of a proof tells nothing, as in `flp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchfsl.crypto import field128, flp
from torchfsl.crypto.field128 import MODULUS
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.kernels.portable.proofs import Words, words_of
from torchfsl.types import Whole


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
        coefficients = flp.interpolated(squares)
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
            point: of `flp.draw_point`, for `order`.
        """
        laid = []
        for values, same, scale in parts:
            calls = np.empty((self.num_calls, self.num_wires), dtype=np.int64)
            calls[:, 0], calls[:, 1:] = same, self._calls(values)
            laid.append((calls, scale))
        none = np.empty((0, self.num_wires, 2), dtype=np.uint64)
        opened, at_roots = flp.ask(proof, self.num_wires, self.order, point, laid, none)
        outputs = field128.integers(at_roots[1 : 1 + self.num_calls])
        return SameQuery(opened, sum(outputs) % MODULUS)

    def accepts(self, opened: Words) -> bool:
        """Whether what was opened, both shares added, fits."""
        same, *values, at_point = field128.integers(opened)
        total = sum((value * (value - same)) ** 2 % MODULUS for value in values)
        return total % MODULUS == at_point

    def point(self, key: bytes) -> int:
        """See `flp.draw_point`."""
        return flp.draw_point(self.order, key)

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
