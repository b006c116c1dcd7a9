"""Rows of a table that an experiment trains: the most frequent, by one noisy histogram.

In a round before the first, each client sends at most `MOST` of its rows, with equal values and a
norm of 1. The sums have the noise of both servers, drawn from the seed, so that every
process of a run chooses the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from torchfsl import FixedPoint, Plan, privacy
from torchfsl.fsl.noise import BothServers
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Indices
from training.config import Config
from training.seeded_noise import SeededNoise

MOST: Final = 20
"""Rows that a client sends: its last ones."""
_NAME: Final = "histogram"
_ENCODING: Final = FixedPoint(ring_bits=64, frac_bits=16, clip=1.0)


def histogram_plan(config: Config, num_rows: int, clients: int) -> Plan | None:
    """The plan of the histogram's round; None where all rows are trained.

    Raises:
        ParameterError: no noise is enough, or the extra `privacy` is missing.
    """
    asked = config.privacy
    if not asked.rows:
        return None
    table = TensorSpec(_NAME, (num_rows, 1))
    plan = build_plan(
        [SegmentSpec(_NAME, "rows", (table,), k_max=min(MOST, num_rows), tau=1)],
        encoding=_ENCODING, max_clients=clients, min_clients=1, above_break_even="keep",
        l2_bound=privacy.l2_bound(_ENCODING, 1.0), proofs="none",
    )  # fmt: skip
    return privacy.calibrate(
        plan, epsilon=asked.epsilon, delta=asked.delta, rounds=1, max_participations=1,
        share=asked.list_share,
    )  # fmt: skip


def histogram_update(plan: Plan, rows: Indices) -> Update:
    """A client's report: its last `MOST` distinct rows, each with 1 / sqrt(their number).

    Args:
        plan: see `histogram_plan`.
        rows: in the order in which the client met them, at least one.
    """
    _, first = np.unique(rows[::-1], return_index=True)
    chosen = np.sort(rows[::-1][np.sort(first)[:MOST]]).astype(np.int64)
    value = math.isqrt(plan.l2_bound**2 // len(chosen))
    return {_NAME: SegmentUpdate(chosen, np.full((len(chosen), 1), value, dtype=np.int64))}


def frequent_rows(config: Config, known: Sequence[Indices], num_rows: int) -> Indices | None:
    """The rows that are trained, increasing; None for all.

    Args:
        config: with `privacy.rows`.
        known: by client the rows of its data, in their order.
        num_rows: of the table.
    """
    plan = histogram_plan(config, num_rows, len(known))
    if plan is None:
        return None
    model = ServerModel({_NAME: np.zeros((num_rows, 1), np.float32)})
    plain = Plain(plan, model, BothServers(plan, SeededNoise(config.seed).both))
    clients = [client for client, rows in enumerate(known) if len(rows)]
    plain.open_round(0, clients)
    for client in clients:
        plain.add(client, histogram_update(plan, known[client]))
    counts = plain.close_round().opened.sums[_NAME].reshape(-1)
    return np.sort(np.argsort(-counts, kind="stable")[: config.privacy.rows])
