"""Private set union: which positions anybody holds, to run later rounds on those alone.

`masks` (by an ordinary round of random values), `shuffle` (by a shuffled list), `advice` (when
either pays).

Invariant: beyond the union itself the servers learn the number of clients alone.
"""

from __future__ import annotations

from torchfsl.fsl.union.advice import UnionAdvice, advise_union
from torchfsl.fsl.union.masks import mask_update, plan_union, restrict, union_model, union_of

__all__ = [
    "UnionAdvice",
    "advise_union",
    "mask_update",
    "plan_union",
    "restrict",
    "union_model",
    "union_of",
]
