"""Costs of a round of a language model, by party and aggregation, without training."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scripts.parties import random_update
from torchfsl.sefl import AggregatorAndKeyHolder
from torchfsl.submodel.aggregation import Closed
from torchfsl.submodel.update import Update
from training.aggregations.audit import Audit
from training.config import Aggregation, Config
from training.data.text import Text
from training.federation import build
from training.tasks.build import language_task
from training.tasks.task import Ids

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
    most = federation.plan.encoding.q_max // 4
    clients = range(config.clients_per_round)
    updates = {c: random_update(federation.plan, c, most) for c in clients}
    played = [play_audited(audit, number, updates) for number in range(1, REPEATS + 1)]
    receipt = next(iter(played[0].closed.receipts.values()))
    servers = min(one.of_servers for one in played)
    apart, home = {}, audit.aggregation
    if isinstance(home, AggregatorAndKeyHolder):
        apart["key_holder_seconds"] = servers * home.key_holder_seconds / home.server_seconds
        apart["between_bytes"] = home.between_bytes
    return {
        "clients": config.clients_per_round,
        "values": sum(segment.m * segment.tau for segment in federation.plan.segments),
        "upload_bytes": receipt.upload_bytes,
        "download_bytes": receipt.download_bytes,
        "client_seconds": min(one.seconds - one.of_servers for one in played) / len(clients),
        "server_seconds": servers,
        **apart,
    }


class AuditedRound(NamedTuple):
    """A round whose sums were compared with the plaintext's, and its processor seconds."""

    closed: Closed
    seconds: float
    of_servers: float


def play_audited(
    audit: Audit,
    number: int,
    updates: Mapping[int, Update],
    rows: Mapping[int, Mapping[str, Ids]] | None = None,
) -> AuditedRound:
    """Play a round.

    Args:
        audit: of the aggregation.
        number: of the round.
        updates: by client.
        rows: by client those that it fetches, by segment; None if clients fetch nothing.
    """
    aggregation = audit.aggregation
    audit.begin()
    for update in updates.values():
        audit.note_update(update, {})
    cpu, wall = time.process_time(), time.perf_counter()
    aggregation.open_round(number, list(updates))
    for client, update in updates.items():
        indices = None if rows is None else rows[client]
        session = aggregation.participant(client).start_round(number, indices=indices)
        session.download()
        if indices is not None and audit.plan.retrieving:
            session.retrieve()
        session.submit(update)
    closed = aggregation.close_round()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    audit.check(closed)
    if not audit.exact:
        raise RuntimeError(f"round {number}: the sums differ from the plaintext sums")
    # Waiting for a processor that others use counts for servers and clients alike.
    return AuditedRound(closed, cpu, cpu * min(1.0, aggregation.server_seconds / wall))
