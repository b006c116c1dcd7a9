"""Tensors over the ring of integers modulo 2**l, held by torch as signed integers that wrap.

torch's integer sums are exact modulo 2**32 or 2**64 on a processor, and products are those of the
kernels (`linear_maps`). torch's right shift is arithmetic, so that shifts here go through unsigned
NumPy views of the same memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.crypto import kdf
from torchfsl.errors import ParameterError

Words = npt.NDArray[Any]
"""Ring elements as `uint32` or `uint64`, one dimension."""


def word_of(dtype: torch.dtype) -> np.dtype[Any]:
    """The unsigned, little-endian words of ring elements that torch holds as `dtype`."""
    return np.dtype("<u4" if dtype == torch.int32 else "<u8")


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring and its fixed point; public.

    Args:
        bits: l, 32 or 64.
        frac_bits: f, binary digits after the point of activations.
        weight_frac_bits: f_w, those of weights. Products have f + f_w.

    Raises:
        ParameterError: no room is left for values, or a comparison is shorter than 8 bits.
    """

    bits: int = 32
    frac_bits: int = 12
    weight_frac_bits: int = 12

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise ParameterError(f"the ring has {self.bits} bits: choose 32 or 64 bits")
        if self.frac_bits < 1 or self.weight_frac_bits < 1 or self.compare_bits < 8:
            raise ParameterError(
                f"frac_bits is {self.frac_bits} and weight_frac_bits is {self.weight_frac_bits}: "
                f"choose 1 or more for each, and at most {self.bits - 9} for weight_frac_bits"
            )
        if self.bits - 1 - self.frac_bits - self.weight_frac_bits < 3:
            raise ParameterError(
                f"frac_bits + weight_frac_bits is {self.frac_bits + self.weight_frac_bits}, "
                f"expected at most {self.bits - 4} in a ring of {self.bits} bits: use fewer "
                "fractional bits"
            )

    @property
    def compare_bits(self) -> int:
        """n: bits of a truncated product below its sign."""
        return self.bits - self.weight_frac_bits - 1

    @property
    def product_bits(self) -> int:
        """Fractional bits of products."""
        return self.frac_bits + self.weight_frac_bits

    @property
    def limit(self) -> float:
        """Real magnitude that products must stay below."""
        return math.ldexp(1.0, self.bits - 1 - self.product_bits)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def dtype(self) -> torch.dtype:
        """As torch holds it."""
        return torch.int32 if self.bits == 32 else torch.int64

    @property
    def word(self) -> np.dtype[Any]:
        """As NumPy holds it, unsigned and little-endian."""
        return word_of(self.dtype)

    def encode(self, values: torch.Tensor, frac_bits: int) -> torch.Tensor:
        """Nearest multiples of 2**-frac_bits, as ring elements of the same shape.

        Args:
            values: finite reals, any shape.
            frac_bits: bits after the point.

        Raises:
            ParameterError: if a value is not finite, or does not fit.
        """
        scaled = torch.round(torch.ldexp(values.detach().double(), torch.tensor(frac_bits)))
        largest = float(scaled.abs().max()) if scaled.numel() else 0.0
        if not largest < 2.0 ** (self.bits - 1):
            raise ParameterError(
                f"a value exceeds {self.bits} bits with {frac_bits} fractional bits: scale the "
                "input down, or use a ring of 64 bits"
            )
        return scaled.to(self.dtype)

    def decode(self, whole: torch.Tensor, frac_bits: int) -> torch.Tensor:
        """The ring elements `whole` as reals: float64, divided by 2**frac_bits."""
        return torch.ldexp(whole.double(), torch.tensor(-frac_bits))

    def uniform(self, key: bytes, shape: tuple[int, ...]) -> torch.Tensor:
        """Uniform ring elements of `shape` from a key of 16 bytes that is used once."""
        words = kdf.stream(key, math.prod(shape) * self.item_bytes).view(self.word)
        return self.tensor(words, shape)

    def words(self, tensor: torch.Tensor) -> Words:
        """The elements in order, unsigned; shares memory where the tensor is contiguous."""
        flat: Words = tensor.contiguous().numpy().reshape(-1).view(self.word)
        return flat

    def tensor(self, words: Words, shape: tuple[int, ...]) -> torch.Tensor:
        """Ring elements of `shape` from unsigned words. Inverse of `words`."""
        signed = np.ascontiguousarray(words).view(np.int32 if self.bits == 32 else np.int64)
        return torch.from_numpy(signed).reshape(shape)

    def from_bytes(self, data: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        """Ring elements of `shape` from exactly as many bytes of `data`, which it copies."""
        return self.tensor(np.frombuffer(data, self.word).copy(), shape)
