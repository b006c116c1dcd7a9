"""`scripts.bench.peers`: what it times gives the rows that it says."""

from __future__ import annotations

import argparse
from functools import reduce

import numpy as np
import pytest

import torchfsl
from scripts.bench import peers
from scripts.bench.kernels import KEY, OTHER_KEY, Keys, Shape
from torchfsl.kernels.backends import kernels

pytestmark = pytest.mark.skipif(torchfsl.backend() != "native", reason="no native kernels built")


def test_a_line_has_all_names_and_published_figures() -> None:
    options = argparse.Namespace(batch=3, repeat=2, least=0.0)
    row = peers.line(14, options)
    assert list(row["answers_per_second"]) == ["leaf", "bits", "together", "read"]
    assert all(len(each) == 2 for each in row["turns"].values())
    assert row["published"] == {"gpu_dpf_v100": 52_536, "cpu_published": 220}
    assert peers.line(8, options)["published"] == {}


@pytest.mark.parametrize("threads", [1, 3])
def test_many_trees_over_one_table_answer_as_one_by_one(threads: int) -> None:
    """More trees than pass over the table together, and rows that fill no block."""
    keys = Keys(Shape("", 70, 9, 0, 6, 4))
    table = np.random.default_rng(1).integers(0, 256, (1, 9 * 128 - 77, 24), dtype=np.uint8)
    arrays = (keys.roots[0], keys.cw, keys.right, keys.leaf0)
    together = kernels().answer_bits(KEY, OTHER_KEY, *arrays, table, threads)
    alone = [
        kernels().answer_bits(
            KEY, OTHER_KEY, keys.roots[0][t : t + 1], keys.cw[:, t : t + 1].copy(),
            keys.right[:, t : t + 1].copy(),
            keys.leaf0[t : t + 1], table, 1,
        )
        for t in range(70)
    ]  # fmt: skip
    assert np.array_equal(together, np.concatenate(alone))
    assert reduce(np.bitwise_or, together).any()
