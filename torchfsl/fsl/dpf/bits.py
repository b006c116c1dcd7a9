"""Retrieval by one bit a row, by trees that nothing else hangs on.

A fetch outside rounds, in a plan without tags, asks of a tree no more than which rows are XORed.
So its leaf is a block of 128 rows, and the hash of the leaf's seed gives their bits: both servers'
bits agree in every other block, and the tree's word, a hint over the field of two elements, makes
them differ in alpha's block at alpha alone. Trees end seven levels early, and hashing a 128th.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchfsl.fsl.dpf.trees import SelectedLeaves, Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.suite import BIT_LEVELS, BIT_WORD_BYTES
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes


def words(key: bytes, leaves: SelectedLeaves) -> Bytes:
    """The words of trees that end early: `[num_trees, 16]`, public.

    Args:
        key: K_bits.
        leaves: the client's secrets; `slots` are alpha's places in blocks of 128 rows.
    """
    rows = np.arange(1 << BIT_LEVELS, dtype=np.uint64)
    selected = np.packbits(leaves.slots[:, None] == rows, axis=1, bitorder="little")
    convert = kernels().convert
    own: Bytes = convert(key, leaves.leaf0, BIT_WORD_BYTES)
    own ^= convert(key, leaves.leaf1, BIT_WORD_BYTES)
    return own ^ selected


def words_of(segment: TreeSegment, view: memoryview) -> Bytes:
    """The words behind a segment's trees in the public share of a fetch: `[num_trees, 16]`."""
    data = np.frombuffer(view, dtype=np.uint8)
    return data[segment.fetch_trees.tree_bytes :].reshape(segment.num_trees, BIT_WORD_BYTES)


def answer(
    segment: TreeSegment,
    key: bytes,
    word: Bytes,
    key_bits: bytes,
    roots: Bytes,
    trees: list[Trees],
    tables: list[Bytes],
) -> Bytes:
    """One server's answer to one fetch: `[num_trees, row_bytes]`.

    Args:
        segment: one that is fetched by bits.
        key: K_tree.
        word: of `words`.
        key_bits: K_bits.
        roots: `[num_trees, 16]`.
        trees: of `segment.fetch_trees`.
        tables: of `psr.tables`, whose row blocks are read row by row.
    """
    answers = []
    groups = zip(split(segment.fetch_trees), trees, tables, strict=True)
    for (_, span), part, table in groups:
        rows = table.reshape(len(table), -1, segment.row_bytes)
        arrays = roots[span], part.cw, part.cw_right, word[span], rows
        answers.append(kernels().answer_bits(key, key_bits, *arrays, num_threads()))
    return np.concatenate(answers)


def decode(segment: TreeSegment, answers: Sequence[bytes | memoryview]) -> Bytes:
    """The rows at each tree's selected position, `[num_trees, row_bytes]`."""
    first, second = (np.frombuffer(part, dtype=np.uint8) for part in answers)
    return (first ^ second).reshape(segment.num_trees, segment.row_bytes)
