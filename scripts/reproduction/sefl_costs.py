"""What a round of a language model costs each party under every aggregation; nobody trains."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from torchfsl.sefl import AggregatorAndKeyHolder
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.update import SegmentUpdate, Update
from training.aggregations.audit import Audit
from training.config import Aggregation, Config
from training.data.text import Text
from training.federation import build
from training.tasks.build import language_task

AGGREGATIONS: tuple[Aggregation, ...] = ("plain", "dense", "fsl", "sefl")
REPEATS = 3
"""Rounds, of which the quickest counts: others work on the same processor."""


def by_aggregation(config: Config) -> dict[str, dict[str, Any]]:
    """The costs of a round under each aggregation."""
    return {name: one_round(config, name) for name in AGGREGATIONS}


def one_round(config: Config, aggregation: Aggregation) -> dict[str, Any]:
    """Bytes and processor seconds of a round of random updates; checks the sum.

    Args:
        config: model and number of clients. The text is made up: costs do not depend on it.
        aggregation: how updates are summed.
    """
    config = dataclasses.replace(config, aggregation=aggregation)
    words = np.arange(40_000, dtype=np.int32) % config.language.vocabulary
    names = [str(number) for number in range(config.language.vocabulary)]
    federation = build(config, language_task(config, Text(words, words, words, names)))
    audit = federation.audit
    updates = {c: _update(federation.plan, c) for c in range(config.clients_per_round)}
    timed = [_timed(audit, number, updates) for number in range(1, REPEATS + 1)]
    if not audit.exact:
        raise RuntimeError(f"{aggregation}: the sums are not the plaintext's")
    receipt: Receipt = timed[0][2]
    servers = min(server for _, server, _ in timed)
    apart, home = {}, audit.aggregation
    if isinstance(home, AggregatorAndKeyHolder):
        apart["key_holder_seconds"] = servers * home.key_holder_seconds / home.server_seconds
        apart["between_bytes"] = home.between_bytes
    return {
        "clients": config.clients_per_round,
        "values": sum(segment.m * segment.tau for segment in federation.plan.segments),
        "upload_bytes": receipt.upload_bytes,
        "download_bytes": receipt.download_bytes,
        "client_seconds": min(client for client, _, _ in timed),
        "server_seconds": servers,
        **apart,
    }


def _timed(audit: Audit, number: int, updates: dict[int, Update]) -> tuple[float, float, Receipt]:
    """Processor seconds of a client and of all servers, and a receipt of the round."""
    aggregation = audit.aggregation
    audit.begin()
    for update in updates.values():
        audit.note_update(update, {})
    cpu, wall = time.process_time(), time.perf_counter()
    aggregation.open_round(number, sorted(updates))
    for client, update in updates.items():
        session = aggregation.participant(client).start_round(number)
        session.download()
        session.submit(update)
    closed = aggregation.close_round()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    audit.check(closed)
    # Waiting for a processor that others use counts for both alike.
    servers = cpu * min(1.0, aggregation.server_seconds / wall)
    return (cpu - servers) / len(updates), servers, next(iter(closed.receipts.values()))


def _update(plan: SubmodelPlan, client: int) -> Update:
    """Random values in every segment, at positions from the first on."""
    draw, most = np.random.default_rng(client), plan.encoding.q_max // 4
    update = {}
    for segment in plan.segments:
        count = segment.m if segment.is_dense else segment.k_max
        values = draw.integers(-most, most, size=(count, segment.tau))
        positions = None if segment.is_dense else np.arange(count, dtype=np.int64)
        update[segment.name] = SegmentUpdate(positions, values)
    return update
