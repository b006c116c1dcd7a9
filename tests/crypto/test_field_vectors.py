"""Vectors of the field: products on both backends, interpolation, uniform draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_field_kernels import KERNELS
from torchfsl.crypto import field, lagrange

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "field.json").read_text()
)


def words(packed: str, *shape: int) -> field.Words:
    return field.from_bytes(bytes.fromhex(packed)).reshape(shape)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda m: m.__name__.split(".")[-1])
def test_products(kernels: Any) -> None:
    for case in VECTORS["cases"]:
        rows, terms, columns = case["rows"], case["terms"], case["columns"]
        left, right = words(case["left"], rows, terms), words(case["right"], terms, columns)
        found = kernels.field_multiply(left.copy(), right.copy())
        assert np.array_equal(found, words(case["product"], rows, columns))
    assert {1, 66, 300} <= {case["terms"] for case in VECTORS["cases"]}


def test_interpolation() -> None:
    for case in VECTORS["bases"]:
        nodes, points = tuple(case["nodes"]), tuple(case["points"])
        expected = words(case["basis"], len(points), len(nodes))
        assert np.array_equal(lagrange.matrix(nodes, points), expected)


def test_uniform_draws() -> None:
    for case in VECTORS["draws"]:
        found = field.uniform(bytes.fromhex(case["key"]), case["count"])
        assert np.array_equal(found, words(case["words"], case["count"]))
