"""The portable backend: NumPy, with AES from `cryptography`. The readable specification.

Same functions and same bytes as the native extension; `trees` has the point function and what
servers do with it, `bits` retrieval by one bit a row, `paths` one path through it, `checks` the
defences, `field` and `ring_products` matrix products modulo a prime and modulo powers of two,
`proofs` what proofs take the time with.
"""

from torchfsl.kernels.portable.bits import answer_bits
from torchfsl.kernels.portable.checks import (
    authenticate,
    authenticate_batch,
    check_gen,
    inner_product,
    leaf_hash,
    row_digests,
    tags,
    verify,
)
from torchfsl.kernels.portable.field import field_multiply
from torchfsl.kernels.portable.paths import tree_path

from torchfsl.kernels.portable.proofs import (  # isort: skip
    accumulate_lifted, carry_sums, field_transform, leaf_sums, query_proof, square_sums,
)  # fmt: skip
from torchfsl.kernels.portable.ring_products import ring_multiply
from torchfsl.kernels.portable.trees import (
    accumulate,
    accumulate_batch,
    answer,
    convert,
    gather,
    hint_gen,
    match,
    stable_order,
    tree_eval,
    tree_gen,
)

__all__ = [
    "accumulate", "accumulate_batch", "accumulate_lifted", "answer", "answer_bits",
    "authenticate", "authenticate_batch", "carry_sums", "check_gen", "convert", "field_multiply",
    "field_transform", "gather", "hint_gen", "inner_product", "leaf_hash", "leaf_sums", "match",
    "query_proof", "ring_multiply", "row_digests", "square_sums", "stable_order", "tags",
    "tree_eval", "tree_gen", "tree_path", "verify",
]  # fmt: skip
