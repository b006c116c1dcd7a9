"""Bytes and seconds of torchfsl on matrix factorisations of SecEmb (Mai and others, 2025).

The SecEmb paper (ICML 2025) states its upload per user and round for five catalogues, with d = 64
values of 32 bits per row. The text that we could read does not give the number of rows m' that a
user sends. The paper's formula for two servers is 2 m' (128 log2(m) + 64 * 32) bits. With 200, 300,
300, 500 and 500 rows, it gives each upload to the digit that is stated, and our clients send as
many.
"""

from __future__ import annotations

import math
from typing import Any, Final

from scripts.bench import measure as bench_measure
from scripts.reproduction import one_round
from torchfsl.fsl import costs
from torchfsl.fsl.plan.plan import Plan

DIM: Final = 64
PUBLISHED: Final = {
    "ML-100K": (1_682, 200, 0.17, 0.86),
    "ML-1M": (3_883, 300, 0.27, 1.99),
    "ML-10M": (10_681, 300, 0.28, 5.47),
    "ML-25M": (62_423, 500, 0.51, 31.96),
    "Yelp": (93_386, 500, 0.52, 47.81),
}
"""Items, rows a user (see above), MB up of SecEmb, MB up with every row in two shares."""


def secemb() -> dict[str, Any]:
    """Plan and measure each shape, with the checks against malicious clients and without."""
    rows = []
    for name, (items, sent, published, whole) in PUBLISHED.items():
        row: dict[str, Any] = {
            "data": name,
            "items": items,
            "rows": sent,
            "published_upload_mb": published,
            "published_dense_upload_mb": whole,
            "formula_upload_mb": round(2 * sent * (16 * math.log2(items) + 4 * DIM) / 1e6, 3),
        }
        for kind, check in (("bare", False), ("checked", True)):
            plan = _plan(items, sent, check=check)
            measured = one_round.measure(plan)
            assert measured.upload_bytes == costs.client_bytes(plan)
            row[kind] = {
                "upload_bytes": measured.upload_bytes,
                "client_seconds": measured.client_seconds,
                "server_seconds": measured.server_seconds,
            }
        rows.append(row)
    return {"environment": bench_measure.environment(), "dim": DIM, "rows": rows}


def _plan(items: int, sent: int, *, check: bool) -> Plan:
    return one_round.one_segment_plan(items, sent, ring_bits=32, tau=DIM, check=check, clients=4)
