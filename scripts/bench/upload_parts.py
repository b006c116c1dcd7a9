"""Bytes of a client's upload: trees, check words, hints, dense values and the rest.

    python -m scripts.bench.upload_parts

The plans are those of the presets `din` and `din-small` with Amazon Beauty's table sizes, and the
published shape of DIN with 419 rows. The program reads no data. Each plan has 32 or 16 bits per
value, with check and authentication on. The published shape also has lines for the later rounds of
a session. Bytes are those of the plan, to both servers together. Every message has this size for
any content.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scripts.bench.round import ROWS, federated
from scripts.program import Options, program
from scripts.reproduction import din
from torchfsl import Plan
from torchfsl.fsl import costs
from training import federation
from training.data.interactions import Interactions
from training.presets import PRESETS, narrowed
from training.tasks.build import recommender
from training.tasks.recommendation import RecommendationTask

ITEMS, CATEGORIES = 12_101, 629
"""Of Amazon Beauty."""

CLIENTS = 100
"""Of a round: the more, the fewer steps has a value of 16 bits."""


class Parts(NamedTuple):
    """Bytes of one client's upload in one round, by what they are for."""

    trees: int
    checks: int
    hints: int
    dense: int
    around: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def parts_of(plan: Plan, *, first_round: bool = True) -> Parts:
    """The upload in a round in which trees go up, or in a later one of a session."""
    groups = [group for segment in plan.with_trees for group in segment.groups]
    checks = sum(group.num_trees * group.check_bytes for group in groups)
    trees = sum(group.tree_bytes for group in groups) - checks
    if not first_round:
        trees = checks = 0
    hints = sum(map(plan.hint_bytes, plan.with_trees))
    dense = sum(map(plan.dense_bytes, plan.dense))
    total = costs.client_bytes(plan, first_round=first_round)
    return Parts(trees, checks, hints, dense, total - trees - checks - hints - dense)


def beauty(name: str, bits: int) -> Plan:
    """The plan of a preset over tables of Beauty's size, with values of 32 bits or of 16.

    With 16, `din-small` has a budget of 252 rows, not 256, for which some bins fewer do.
    """
    config = PRESETS[name]
    if bits == 16:
        config = narrowed(config)
    sequences = tuple(np.array([user, user + 1, user + 2]) for user in range(CLIENTS))
    data = Interactions(sequences, np.arange(ITEMS) % CATEGORIES, CATEGORIES)
    task = RecommendationTask(
        data, config.recommendation, network=recommender(config), seed=0, evaluate="test"
    )
    plan = federation.build(config, task).plan
    assert isinstance(plan, Plan)
    return plan


def published(bits: int, epochs: int = 1) -> Plan:
    """The plan of DIN's published shape with 419 rows per client."""
    plan = federated().make_plan(max_clients=CLIENTS, rows_per_client=ROWS)
    encodings = din.sixteen_bits(plan) if bits == 16 else {}
    return din.again(plan, plan.encoding, epochs, encodings=encodings)


def table() -> list[tuple[str, Parts]]:
    """A line a plan and round."""
    lines = [
        (f"`{name}`, {bits} bits", parts_of(beauty(name, bits)))
        for name in ("din", "din-small")
        for bits in (32, 16)
    ]
    for bits in (32, 16):
        plan = published(bits, din.ROUNDS_OF_A_SESSION)
        lines.append((f"published shape, {bits} bits", parts_of(plan)))
        lines.append((f"... later in a session, {bits} bits", parts_of(plan, first_round=False)))
    return lines


@program(finds=False)
def main(options: Options) -> None:
    """Print the table as Markdown."""
    print("| plan | " + " | ".join([*Parts._fields, "all"]) + " |")
    print("| --- |" + " --- |" * (len(Parts._fields) + 1))
    for name, parts in table():
        print(f"| {name} | " + " | ".join(f"{n:,}" for n in (*parts, parts.total)) + " |")
