"""Many reports with proofs over small plans: honest pass, lies fail, wraps as expected.

    nice python -m scripts.checks.proofs [--honest 100000] [--lies 100000] [--json FILE]

Honest reports have rings of 16 to 48 bits, bounds of 4000 to 2**20, counts and weights, and bounds
of a segment. There are dummies among them. The program compares each aggregate with the plain sum
of the updates. It counts the values that wrapped, and compares them with the number expected from
their magnitudes.

Lies are those of `scripts.attacks.lies`, under `lanes` and `norm`. Each of their rounds has one
honest client, whose update alone must be in the aggregate. The exit code is 1 if anything is not as
it must be. If FILE is there, the run goes on from it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

from scripts.attacks.lies import KINDS, TAU, Lie, plan_to, plan_with
from scripts.attacks.lying_clients import lying
from scripts.parties import two_servers
from scripts.program import Found, Options, option, program
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client import proof
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole

CLIENTS: Final = 64
"""Reports in a turn: a round, or several where the sums of so many could leave the ring."""


@dataclass
class Counted:
    """What happened."""

    honest: int = 0
    refused: int = 0
    wrong_sums: int = 0
    wraps: int = 0
    expected_wraps: float = 0.0
    lies: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def as_it_must_be(self) -> bool:
        """Nothing honest refused, no lie accepted, wraps within five standard deviations."""
        away = abs(self.wraps - self.expected_wraps)
        right = away <= 5 * math.sqrt(self.expected_wraps + 1)
        return not (self.refused or self.wrong_sums or any(self.accepted.values())) and right


def honest_plans() -> list[Plan]:
    """Rings and bounds, counts and weights."""
    norm, lanes = plan_with("norm"), plan_with("lanes")
    weights, own = plan_with("norm", lane="weight"), plan_with("norm", own=True)
    weighted = plan_with("lanes", lane="weight")
    shapes = {norm: [(16, 4000, 4), (24, 1 << 16, 32), (32, 1 << 16, 64), (32, 1 << 20, 64)]}
    shapes[norm].append((48, 1 << 20, 64))
    shapes |= {lanes: [(24, 0, 64), (32, 0, 64)], weights: [(32, 1 << 18, 64)]}
    shapes |= {weighted: [(24, 0, 64)], own: [(32, 1 << 20, 64)]}
    return [resized(plan, *shape) for plan, listed in shapes.items() for shape in listed]


def resized(plan: Plan, bits: int, bound: int, clients: int) -> Plan:
    """The plan with another ring, bound and number of clients."""
    encoding = FixedPoint(bits, 0, float(1 << (bits - 8)) / (2 * plan.max_weight))
    segments = tuple(
        dataclasses.replace(s, l2_bound=bound // 2 if s.l2_bound else 0) for s in plan.segments
    )
    changes = {"l2_bound": bound, "max_clients": clients}
    return dataclasses.replace(plan, encoding=encoding, segments=segments, **changes)


def random_update(plan: Plan, rng: np.random.Generator) -> Update:
    """Up to two rows and the dense values, often near the bound."""
    count = int(rng.integers(0, 3))
    rows = np.sort(rng.choice(plan.segments[0].m, count, replace=False)).astype(np.int64)
    most = plan.encoding.q_max
    if plan.l2_bound:
        bound = plan.segments[0].l2_bound or plan.l2_bound
        most = min(most, int(bound / math.sqrt(2 * TAU + 3)))
    most = int(most * rng.choice([0.01, 1.0]))
    return {
        "table": SegmentUpdate(rows, rng.integers(-most, most + 1, (count, TAU))),
        "bias": SegmentUpdate(None, rng.integers(-most, most + 1, (3, 1))),
    }


def honest_round(plan: Plan, rng: np.random.Generator, counted: Counted) -> None:
    """A round of honest clients, every eighth of which sends dummies."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link = InProcess(*servers)
    table = np.zeros((plan.segments[0].m, TAU), dtype=np.int64)
    bias = np.zeros((3, 1), dtype=np.int64)
    real = proof.carries.grow

    def grow(statement: Any, context: Any, seeds: Any, wrapped: Whole) -> Any:
        counted.wraps += int(np.abs(wrapped).sum())
        return real(statement, context, seeds, wrapped)

    slack = proof._slack

    def noted(statement: Any, true: Any, weight: int) -> Whole:
        found = slack(statement, true, weight)
        vector = statement.vector(*true, found)
        counted.expected_wraps += float(np.abs(vector).sum()) / float(1 << statement.ring_bits)
        return found

    with mock.patch.object(proof.carries, "grow", grow), mock.patch.object(proof, "_slack", noted):
        for number in range(plan.max_clients):
            one = Client(plan, link, client_id=number).start_round(1)
            if number % 8 == 7:
                one.abort()
                continue
            update, weight = random_update(plan, rng), int(rng.integers(1, plan.max_weight + 1))
            one.submit(update, weight=weight)
            table[update["table"].positions] += weight * update["table"].values
            bias += weight * update["bias"].values
    opened = finish_round(servers)
    counted.honest += plan.max_clients
    counted.refused += plan.max_clients - opened.num_clients
    same = np.array_equal(opened.sums["table"], table) and np.array_equal(opened.sums["bias"], bias)
    counted.wrong_sums += not same


def lying_round(plan: Plan, lies: dict[str, Lie], counted: Counted) -> None:
    """A round of one honest client and of liars, one lie after the other."""
    servers, names = two_servers(plan), list(lies)
    begin_round(servers, 1)
    link = InProcess(*servers)
    rng = np.random.default_rng(counted.lies)
    update, weight = random_update(plan, rng), min(2, plan.max_weight)
    Client(plan, link, client_id=0).start_round(1).submit(update, weight=weight)
    told = {number: names[(counted.lies + number) % len(names)] for number in range(1, CLIENTS)}
    for number, name in told.items():
        with lying(lies[name]):
            one = Client(plan, link, client_id=number).start_round(1)
            one.submit(random_update(plan, rng), weight=weight)
    opened = finish_round(servers)
    counted.lies += len(told)
    for number in opened.clients:
        if number:
            counted.accepted[told[number]] = counted.accepted.get(told[number], 0) + 1
    table = np.zeros((plan.segments[0].m, TAU), dtype=np.int64)
    table[update["table"].positions] += weight * update["table"].values
    counted.wrong_sums += not np.array_equal(opened.sums["table"], table)


def lied_to() -> list[tuple[Plan, dict[str, Lie]]]:
    """Plans and the lies for each; plans with `lanes` get lies about counts and weights alone."""
    found = []
    for lies in KINDS:
        found.append((plan_to(lies, "norm"), lies))
        of_lanes = {
            name: lie for name, lie in lies.items() if "norm" not in lie.needs[0] and not lie.slack
        }
        if of_lanes:
            found.append((plan_to(lies, "lanes"), of_lanes))
    return [(dataclasses.replace(plan, max_clients=CLIENTS), lies) for plan, lies in found]


def run(honest: int, lies: int, file: Path | None = None) -> Counted:
    """So many reports of each kind, or a few more, to the end of a round, in turns.

    Args:
        honest: reports that must pass.
        lies: reports that must not.
        file: what is counted so far; goes on from there, and is written every twenty turns.
    """
    counted = Counted()
    if file is not None and file.exists():
        before = json.loads(file.read_text())
        counted = Counted(**{f.name: before[f.name] for f in dataclasses.fields(Counted)})
    plans = honest_plans()
    liars = lied_to()
    earlier, start, turn = counted.seconds, time.process_time(), 0
    while counted.honest < honest or counted.lies < lies:
        if counted.honest < honest:
            number = counted.honest // CLIENTS
            plan, rng = plans[number % len(plans)], np.random.default_rng(number)
            for _ in range(CLIENTS // plan.max_clients):
                honest_round(plan, rng, counted)
        if counted.lies < lies:
            plan, said = liars[counted.lies // (CLIENTS - 1) % len(liars)]
            lying_round(plan, said, counted)
        turn += 1
        counted.seconds = earlier + time.process_time() - start
        if file is not None and turn % 20 == 0:
            file.write_text(json.dumps(dataclasses.asdict(counted), indent=2) + "\n")
    return counted


@program(option("--honest", 100_000), option("--lies", 100_000))
def main(options: Options) -> Found:
    """Play both kinds and print the counts."""
    logging.getLogger("torchfsl").setLevel(logging.ERROR)  # a line a liar
    counted = run(options.honest, options.lies, options.json)
    found = dataclasses.asdict(counted)
    print(json.dumps(found, indent=2))
    return found | {"ok": counted.as_it_must_be}
