"""Products modulo 2**32 and 2**64: NumPy and C++ against Python's integers, on all CPU paths."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from torchfsl.kernels import portable

try:
    from torchfsl.kernels import _native as native
except ImportError:  # pragma: no cover
    native = None  # type: ignore[assignment]

KERNELS = [portable] if native is None else [portable, native]
BITS = pytest.mark.parametrize("bits", [32, 64])


def words(bits: int, shape: tuple[int, ...], seed: int) -> Any:
    """Uniform elements, a fifth of them at the ends of the ring."""
    draw = np.random.default_rng(seed)
    kind = np.uint32 if bits == 32 else np.uint64
    ends = np.array([0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1], dtype=kind)
    uniform = draw.integers(0, 1 << bits, size=shape, dtype=kind)
    return np.where(draw.random(shape) < 0.2, draw.choice(ends, size=shape), uniform).astype(kind)


def exact(bits: int, left: Any, right: Any) -> list[list[int]]:
    columns = list(zip(*right.tolist(), strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) % (1 << bits) for column in columns]
        for row in left.tolist()
    ]


@BITS
@pytest.mark.parametrize("kernels", KERNELS, ids=lambda m: m.__name__.split(".")[-1])
class TestBoth:
    @pytest.mark.parametrize("terms", [1, 2, 17, 255, 256, 257, 600])
    def test_products_equal_those_of_python(self, kernels: Any, bits: int, terms: int) -> None:
        for rows, columns in ((1, 1), (1, 40), (7, 33), (13, 16), (4, 67)):
            left, right = words(bits, (rows, terms), terms), words(bits, (terms, columns), columns)
            product = kernels.ring_multiply(left, right)
            assert product.dtype == left.dtype
            assert product.tolist() == exact(bits, left, right)

    def test_every_width_of_a_last_panel(self, kernels: Any, bits: int) -> None:
        for columns in range(1, 70):
            left, right = words(bits, (5, 3), columns), words(bits, (3, columns), 100 + columns)
            assert kernels.ring_multiply(left, right).tolist() == exact(bits, left, right)

    @pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
    def test_an_empty_sum_is_zero(
        self, kernels: Any, bits: int, shape: tuple[int, int, int]
    ) -> None:
        rows, terms, columns = shape
        out = kernels.ring_multiply(words(bits, (rows, terms), 1), words(bits, (terms, columns), 2))
        assert out.shape == (rows, columns)
        assert not out.any()

    def test_what_does_not_fit_is_refused(self, kernels: Any, bits: int) -> None:
        for left, right in (((2, 3), (4, 2)), ((3,), (3, 2)), ((2, 3), (3,))):
            with pytest.raises(ValueError, match="must"):
                kernels.ring_multiply(words(bits, left, 1), words(bits, right, 2))
        for other in (words(96 - bits, (2, 2), 1), words(bits, (2, 2), 1).astype(np.float32)):
            with pytest.raises(ValueError, match="dtype"):
                kernels.ring_multiply(words(bits, (2, 2), 1), other)


@BITS
@pytest.mark.skipif(native is None, reason="the native extension is not built")
def test_both_backends_return_the_same_bytes_for_any_number_of_threads(bits: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        rows, terms, columns = (draw.randint(1, n) for n in (30, 300, 700))
        left, right = words(bits, (rows, terms), seed), words(bits, (terms, columns), seed + 1)
        expected = portable.ring_multiply(left, right).tobytes()
        for threads in (1, 2, 7):
            assert native.ring_multiply(left, right, num_threads=threads).tobytes() == expected


def digest_of_products() -> str:
    """For a process of its own: products under the CPU path that it was given."""
    hasher = hashlib.sha256()
    for bits in (32, 64):
        for rows, terms, columns in ((1, 1, 1), (5, 66, 331), (13, 300, 515), (7, 9, 64)):
            left, right = words(bits, (rows, terms), rows), words(bits, (terms, columns), columns)
            hasher.update(native.ring_multiply(left, right).tobytes())
    return hasher.hexdigest()


@pytest.mark.skipif(native is None, reason="the native extension is not built")
@pytest.mark.parametrize("path", ["portable", "aesni", "vaes256", "vaes512", "arm"])
def test_every_cpu_path_returns_the_same_bytes(path: str) -> None:
    script = "import tests.kernels.test_ring_products as t; print(t.digest_of_products())"
    env = {**os.environ, "TORCHFSL_CPU_PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
    )
    if "TORCHFSL_CPU_PATH" in done.stderr:
        pytest.skip(f"this machine has no path {path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest_of_products()
