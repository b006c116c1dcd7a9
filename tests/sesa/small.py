"""Small plans, random updates and plaintext sums for the tests of one server."""

from __future__ import annotations

import random

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.sesa import SesaPlan, Width, build_plan
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole

ENCODING = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)
ANY_ISOLATION = 1e9
"""For tests of something else, on cohorts too small to hide anybody."""


def make_plan(
    *,
    submodels: int = 2,
    size: int = 3,
    dense: int = 2,
    owned: tuple[int, ...] = (2, 1),
    clients: tuple[int, ...] = (3, 3),
    collusion: int = 2,
    dropouts: int = 0,
    max_isolation: float = ANY_ISOLATION,
    min_clients: int = 2,
    retrieve: bool = True,
    encoding: FixedPoint = ENCODING,
) -> SesaPlan:
    """A table of submodels and, if `dense`, a dense segment; widths by submodels owned."""
    specs = [
        SegmentSpec(
            "table", "rows", (TensorSpec("table", (submodels, size)),), k_max=submodels, tau=size,
            retrieve=retrieve,
        )
    ]  # fmt: skip
    if dense:
        specs.append(SegmentSpec("bias", "dense", (TensorSpec("bias", (dense,)),)))
    one = (1,) if dense else ()
    return build_plan(
        specs,
        encoding=encoding,
        widths=[Width((k, *one), n) for k, n in zip(owned, clients, strict=True)],
        collusion=collusion,
        dropouts=dropouts,
        max_isolation=max_isolation,
        min_clients=min_clients,
        session=bytes(16),
    )


def make_model(plan: SesaPlan, seed: int = 0) -> ServerModel:
    draw = np.random.default_rng(seed)
    tensors = [tensor for segment in plan.segments for tensor in segment.tensors]
    return ServerModel({t.name: draw.normal(size=t.shape).astype(t.dtype) for t in tensors})


def widths_of(plan: SesaPlan) -> dict[int, int]:
    """Clients 10, 13, 16, ... in the order of the widths."""
    widths = [number for number, width in enumerate(plan.widths) for _ in range(width.clients)]
    return {10 + 3 * place: width for place, width in enumerate(widths)}


def random_update(plan: SesaPlan, width: int, seed: int) -> Update:
    """As many submodels as the width owns, values up to the largest magnitude."""
    choose, draw = random.Random(seed), np.random.default_rng(seed)
    most = plan.encoding.q_max
    update: Update = {}
    for segment, owned in zip(plan.segments, plan.widths[width].owned, strict=True):
        if segment.is_dense:
            indices, shape = None, (segment.m, 1)
        else:
            indices = np.array(sorted(choose.sample(range(segment.m), owned)), dtype=np.int64)
            shape = (owned, segment.tau)
        values = draw.integers(-most, most + 1, size=shape)
        values[draw.random(shape) < 0.1] = choose.choice([-most, most])
        update[segment.name] = SegmentUpdate(indices, values)
    return update


def plain_sums(plan: SesaPlan, updates: list[Update]) -> dict[str, Whole]:
    sums = {s.name: np.zeros((s.m, s.tau), dtype=np.int64) for s in plan.segments}
    for update in updates:
        for name, part in update.items():
            sums[name][slice(None) if part.indices is None else part.indices] += part.values
    return sums


def same_sums(found: dict[str, Whole], expected: dict[str, Whole]) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in expected
    )
