"""Products modulo 2**32 - 5: NumPy and C++ against Python's integers, edges and all CPU paths."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfsl.crypto.field import MODULUS, Words
from torchfsl.kernels import portable
from torchfsl.kernels.portable import field

try:
    from torchfsl.kernels import _native as native
except ImportError:  # pragma: no cover
    native = None  # type: ignore[assignment]

KERNELS = [portable] if native is None else [portable, native]
EDGES = [0, 1, 2, 5, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, MODULUS - 2, MODULUS - 1]


def exact(left: Words, right: Words) -> list[list[int]]:
    columns = list(zip(*right.tolist(), strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) % MODULUS for column in columns]
        for row in left.tolist()
    ]


def numbers(shape: tuple[int, ...], seed: int) -> Words:
    """Uniform numbers, a fifth of them at the edges."""
    draw = np.random.default_rng(seed)
    words = draw.integers(0, MODULUS, size=shape, dtype=np.uint32)
    edges = draw.choice(np.array(EDGES, dtype=np.uint32), size=shape)
    return np.where(draw.random(shape) < 0.2, edges, words).astype(np.uint32)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda m: m.__name__.split(".")[-1])
class TestBoth:
    @pytest.mark.parametrize("terms", [1, 2, 3, 17, 66, 299, 300])
    def test_products_equal_those_of_python(self, kernels: Any, terms: int) -> None:
        for rows, columns in ((1, 1), (1, 40), (7, 33), (13, 16), (6, 290)):
            left, right = numbers((rows, terms), terms), numbers((terms, columns), columns)
            assert kernels.field_multiply(left, right).tolist() == exact(left, right)

    def test_every_number_of_terms_up_to_300(self, kernels: Any) -> None:
        for terms in range(1, 301):
            left, right = numbers((2, terms), terms), numbers((terms, 17), 1000 + terms)
            assert kernels.field_multiply(left, right).tolist() == exact(left, right)
            left[:], right[:] = MODULUS - 1, MODULUS - 1
            assert (kernels.field_multiply(left, right) == terms).all()

    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_any_shape_and_any_edge(self, kernels: Any, data: Any) -> None:
        rows, terms, columns = (data.draw(st.integers(1, 9)) for _ in range(3))
        number = st.sampled_from(EDGES) | st.integers(0, MODULUS - 1)
        left, right = (
            np.array(
                data.draw(st.lists(number, min_size=a * b, max_size=a * b)), dtype=np.uint32
            ).reshape(a, b)
            for a, b in ((rows, terms), (terms, columns))
        )
        assert kernels.field_multiply(left, right).tolist() == exact(left, right)

    def test_the_largest_sums_do_not_overflow(self, kernels: Any) -> None:
        for terms in (1 << 16, (1 << 16) + 1, 3 << 17):
            left = np.full((2, terms), MODULUS - 1, dtype=np.uint32)
            right = np.full((terms, 19), MODULUS - 1, dtype=np.uint32)
            assert (kernels.field_multiply(left, right) == terms % MODULUS).all()

    @pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
    def test_an_empty_sum_is_zero(self, kernels: Any, shape: tuple[int, int, int]) -> None:
        rows, terms, columns = shape
        left, right = numbers((rows, terms), 1), numbers((terms, columns), 2)
        out = kernels.field_multiply(left, right)
        assert out.shape == (rows, columns)
        assert out.dtype == np.uint32
        assert not out.any()

    @pytest.mark.parametrize("bad", [MODULUS, MODULUS + 1, 2**32 - 1])
    def test_what_is_no_number_of_the_field_is_refused(self, kernels: Any, bad: int) -> None:
        good, wrong = numbers((3, 3), 1), numbers((3, 3), 2)
        wrong[2, 1] = bad
        for pair in ((good, wrong), (wrong, good)):
            with pytest.raises(ValueError, match="below 2"):
                kernels.field_multiply(*pair)

    def test_shapes_that_do_not_fit_are_refused(self, kernels: Any) -> None:
        for left, right in (((2, 3), (4, 2)), ((3,), (3, 2)), ((2, 3), (3,))):
            with pytest.raises(ValueError, match="must"):
                kernels.field_multiply(numbers(left, 1), numbers(right, 2))
        with pytest.raises(ValueError, match="must"):
            kernels.field_multiply(numbers((2, 2), 1).astype(np.int64), numbers((2, 2), 1))
        too_many = np.zeros((1, field.MAX_TERMS + 1), dtype=np.uint32)
        with pytest.raises(ValueError, match="2\\*\\*24 terms"):
            kernels.field_multiply(too_many, too_many.reshape(-1, 1))


def test_ten_thousand_numbers_multiply_as_in_python() -> None:
    left, right = numbers((10_000, 1), 3), numbers((1, 1), 4)
    expected = [a * int(right[0, 0]) % MODULUS for a in left[:, 0].tolist()]
    for kernels in KERNELS:
        assert kernels.field_multiply(left, right)[:, 0].tolist() == expected


@pytest.mark.skipif(native is None, reason="the native extension is not built")
def test_both_backends_return_the_same_bytes_for_any_number_of_threads() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        rows, terms, columns = (draw.randint(1, n) for n in (30, 80, 2000))
        left, right = numbers((rows, terms), seed), numbers((terms, columns), seed + 1)
        expected = portable.field_multiply(left, right).tobytes()
        for threads in (1, 2, 7):
            assert native.field_multiply(left, right, num_threads=threads).tobytes() == expected


def digest_of_products() -> str:
    """For a process of its own: products under the CPU path that it was given."""
    import hashlib

    hasher = hashlib.sha256()
    for rows, terms, columns in ((1, 1, 1), (5, 66, 331), (13, 300, 515), (7, 9, 64)):
        left, right = numbers((rows, terms), rows), numbers((terms, columns), columns)
        hasher.update(native.field_multiply(left, right).tobytes())
    return hasher.hexdigest()


@pytest.mark.skipif(native is None, reason="the native extension is not built")
@pytest.mark.parametrize("path", ["portable", "aesni", "vaes256", "vaes512", "arm"])
def test_every_cpu_path_returns_the_same_bytes(path: str) -> None:
    script = "import tests.kernels.test_field_kernels as t; print(t.digest_of_products())"
    env = {**os.environ, "TORCHFSL_CPU_PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
    )
    if "TORCHFSL_CPU_PATH" in done.stderr:
        pytest.skip(f"this machine has no path {path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest_of_products()
