"""Every random choice of an experiment, as a function of its seed and of what it is for.

A stream is SHAKE-256 over the seed and a path of labels, so the cohort of round 7 or the batches
of client 12 in round 7 do not depend on what was drawn before: a resumed run and another
aggregation draw the same. Never used for keys, masks or hash seeds; those come from the operating
system.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 16


class Stream:
    """An endless pseudo-random stream named by `(seed, *path)`.

    Args:
        seed: the experiment's seed, in [0, 2**63).
        path: what the stream is for, such as `("batches", round, client)`.
    """

    def __init__(self, seed: int, *path: str | int) -> None:
        if not 0 <= seed < 1 << 63:
            raise ValueError(f"seed is {seed}: choose a whole number from 0 to 2**63 - 1")
        parts = [b"torchfsl training prf", b"i%d" % seed]
        parts += [b"i%d" % p if isinstance(p, int) else b"s" + p.encode() for p in path]
        self._key = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        self._block = 0
        self._buffer = b""

    def bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        pieces = [self._buffer]
        missing = size - len(self._buffer)
        while missing > 0:
            block = hashlib.shake_256(self._key + self._block.to_bytes(8, "little"))
            # A short first block keeps small draws cheap; its length is fixed, so what has been
            # drawn before never changes what follows.
            length = 256 if self._block == 0 else _BLOCK
            pieces.append(block.digest(length))
            self._block += 1
            missing -= length
        joined = b"".join(pieces)
        self._buffer = joined[size:]
        return joined[:size]

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").astype(np.uint64)

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """`count` uniform reals in [0, 1)."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, bound: int, count: int) -> npt.NDArray[np.int64]:
        """`count` integers in [0, bound), 0 < bound <= 2**32; the bias is below 2**-31."""
        if not 0 < bound <= 1 << 32:
            raise ValueError(f"bound is {bound}: choose a whole number from 1 to 2**32")
        high = self.words(count) >> np.uint64(32)
        return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """A uniform order of `range(count)`: the ranks of random words."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def choice(self, population: int, count: int) -> npt.NDArray[np.int64]:
        """`count` distinct integers of [0, population), sorted.

        Raises:
            ValueError: fewer than `count` to choose from.
        """
        if count > population:
            raise ValueError(
                f"cannot choose count = {count} from population = {population}: choose a count "
                f"of at most {population}"
            )
        return np.sort(self.permutation(population)[:count])

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        """`count` standard normal reals (Box and Muller)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(count)))
        return radius * np.cos(2.0 * np.pi * self.uniform(count))

    def dirichlet(self, alpha: float, size: int) -> npt.NDArray[np.float64]:
        """A point of the simplex with `size` corners, Dirichlet with all parameters `alpha`.

        NumPy's gamma sampler, seeded from this stream.
        """
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(self.bytes(16))))
        return generator.dirichlet(np.full(size, alpha))

    def torch_seed(self) -> int:
        """A seed for `torch.manual_seed`, for initial weights and dropout."""
        return int.from_bytes(self.bytes(8), "little") >> 1
