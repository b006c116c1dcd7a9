"""Portable kernel of retrieval by one bit a row. Letters are those of `trees`."""

from __future__ import annotations

from typing import Final

import numpy as np

from torchfsl.kernels.portable.trees import bits_of, convert, mask_of, tree_eval
from torchfsl.types import Bytes

BIT_ROWS: Final = 128
"""Rows whose bits one leaf gives in `answer_bits`."""


def answer_bits(
    key_tree: bytes,
    key_bits: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    words: Bytes,
    table: Bytes,
    num_threads: int = 1,
) -> Bytes:
    """Private retrieval by one bit a row: trees over blocks of 128 rows of `table [T or 1, M, R]`.

    The bits of block x are H_bits(s_x), XORed with `words [T, 16]` where t_x = 1; bit i, lowest
    first, is that of row 128 x + i. Returns `[T, R]`. Law: where a word is the XOR of both
    parties' H_bits(s) at alpha's block and of alpha's bit, the two answers XOR to the row at alpha.
    """
    num_trees, num_rows = len(roots), table.shape[1]
    states = tree_eval(key_tree, roots, cw, cw_right, -(-num_rows // BIT_ROWS))
    blocks = convert(key_bits, states.reshape(-1, 16), 16).reshape(states.shape)
    blocks ^= words[:, None, :] & mask_of(bits_of(states))
    bits = np.unpackbits(blocks.reshape(num_trees, -1), axis=1, count=num_rows, bitorder="little")
    out = np.empty((num_trees, table.shape[2]), dtype=np.uint8)
    for tree in range(num_trees):
        rows = table[tree if len(table) > 1 else 0]
        out[tree] = np.bitwise_xor.reduce(rows & np.negative(bits[tree])[:, None], axis=0)
    return out
