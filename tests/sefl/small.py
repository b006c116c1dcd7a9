"""Small plans, random updates and plaintext sums for the tests of aggregator and key holder."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.sefl import Aggregator, KeyHolder, SeflPlan, build_plan, introduce
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole

ENCODING = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)


def make_draft(
    *, sizes: tuple[int, ...] = (5, 3), encoding: FixedPoint = ENCODING, max_clients: int = 4,
    **options: Any,
) -> SeflPlan:  # fmt: skip
    """Dense segments `part0`, `part1`, ... of one vector each."""
    specs = [
        SegmentSpec(f"part{n}", "dense", (TensorSpec(f"w{n}", (size,)),))
        for n, size in enumerate(sizes)
    ]
    return build_plan(
        specs, encoding=encoding, max_clients=max_clients, session=bytes(16), **options
    )


def make_servers(draft: SeflPlan, **draws: Any) -> tuple[Aggregator, KeyHolder, SeflPlan]:
    """Introduced servers; `aggregator_draw` and `key_holder_draw` replace their noise."""
    model = ServerModel(
        {t.name: np.zeros(t.shape, t.dtype) for s in draft.segments for t in s.tensors}
    )
    theirs = {name: draws[name] for name in draws}
    aggregator = Aggregator(
        draft, model=model,
        **({"draw": theirs["aggregator_draw"]} if "aggregator_draw" in theirs else {}),
    )  # fmt: skip
    key_holder = KeyHolder(
        draft, **({"draw": theirs["key_holder_draw"]} if "key_holder_draw" in theirs else {})
    )
    return aggregator, key_holder, introduce(aggregator, key_holder, draft)


def random_update(plan: SeflPlan, seed: int) -> Update:
    """Values up to the largest magnitude, some of them exactly that."""
    draw, most = np.random.default_rng(seed), plan.encoding.q_max
    update: Update = {}
    for segment in plan.segments:
        values = draw.integers(-most, most + 1, size=(segment.m, 1))
        values[draw.random(values.shape) < 0.1] = draw.choice([-most, most])
        update[segment.name] = SegmentUpdate(None, values)
    return update


def constant_update(plan: SeflPlan, value: int) -> Update:
    return {s.name: SegmentUpdate(None, np.full((s.m, 1), value)) for s in plan.segments}


def plain_sums(
    plan: SeflPlan, updates: dict[int, Update], weights: dict[int, int] | None = None
) -> dict[str, Whole]:
    return {
        s.name: sum(
            (weights or {}).get(n, 1) * update[s.name].values for n, update in updates.items()
        )
        for s in plan.segments
    }  # type: ignore[return-value]


def same_sums(found: dict[str, Whole], expected: dict[str, Whole]) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in expected
    )
