"""What proofs cost at DIN's published shape: bytes of every party, and processor time by part.

    python -m scripts.bench.proofs [--reports 4] [--turns 3] [--json FILE]

The plan is that of `scripts.bench.round`, with a count lane and a bound of 2**16 (norm 1). A client
draws a report and both servers answer for it, in one thread each, under the plan without proofs,
with lanes and with norm (of counts, and of weights up to ten) in turns, so that each turn of one
stands beside a turn of the others; what counts is processor time, the least of the turns. Sums over
leaves are made while a report is added up: what they cost is what adding costs more than without
proofs. No transport, no training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchfsl
from models import DIN
from scripts.bench.round import CATEGORIES, CATEGORY_ROWS, DIM, ITEM_ROWS, ITEMS, USERS
from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl import costs, messages
from torchfsl.fsl.client import report as client_report
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import carries
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import PROOFS
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.proofs import Questions
from torchfsl.fsl.server.reports import Report, TreeRecord
from torchfsl.fsl.server.running_sums import RunningSums
from torchfsl.submodel.update import SegmentUpdate, Update

BOUND = 1 << 16
WEIGHT = 10


def plans() -> dict[str, Plan]:
    """DIN's plan by `proofs`: counted, and with weights."""
    torch.manual_seed(0)
    model = DIN(items=ITEMS, categories=CATEGORIES, users=USERS, dim=DIM)
    fed = torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), lr=0.01), source="gradient",
        encoding=torchfsl.FixedPoint(),
    )  # fmt: skip
    rows = ITEM_ROWS + CATEGORY_ROWS + 1
    plan = fed.make_plan(max_clients=100, rows_per_client=rows, average="rows", l2_bound=BOUND)
    weights = dataclasses.replace(plan, lane="weight", max_weight=WEIGHT)
    made = {name: dataclasses.replace(plan, proofs=name) for name in PROOFS}
    return made | {
        f"{name}, weights": dataclasses.replace(weights, proofs=name) for name in PROOFS[1:]
    }


def update_of(plan: Plan, seed: int) -> Update:
    """An update near the bound, on as many rows as a client may select."""
    rng, update = np.random.default_rng(seed), {}
    for segment in plan.segments:
        count = segment.m if segment.is_dense else segment.k_max
        indices = None
        if not segment.is_dense:
            indices = np.sort(rng.choice(segment.m, count, replace=False)).astype(np.int64)
        values = rng.integers(-200, 201, (count, segment.tau))
        update[segment.name] = SegmentUpdate(indices, values)
    return update


class OneReport:
    """One client's report under one plan, and what both servers have of it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.update = plan, update_of(plan, seed)
        self.trees = ClientTrees(plan, 0, 1)
        early = [
            piece
            for segment in plan.early
            for tree in self.trees.grow(segment, self.update[segment.name].positions)
            for piece in tree.pieces()
        ]
        self._public = b"".join(early)

    def draw(self) -> client_report.DrawnReport:
        """The client's part; trees that were fetched with are there already."""
        begun = ReportContext(self.trees.context, 1, random_bytes(16))
        self.trees.forget(s for s in self.plan.late if s.name in self.trees._selections)
        return client_report.draw(self.trees, begun, self.update, 1)

    def at(self, party: int, drawn: client_report.DrawnReport) -> LoadedReport:
        """The report as this server has it."""
        seed, nonce = self.trees.master_seeds[party], self.trees.context.nonce
        record = TreeRecord(opening_round=1, nonce=nonce, public=self._public, master_seed=seed)
        public, masked = (b"".join(drawn.public), tuple(bytes(part) for part in drawn.masked))
        report = Report(
            plan=self.plan, round_number=1, client=0, trees=record, model=b"", nonce=nonce,
            public=public, hint_nonce=drawn.context.hint_nonce, masked=masked, commitment=b"",
        )  # fmt: skip
        return LoadedReport(party, report)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of a call, and what it gives."""
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def turn(one: OneReport) -> dict[str, float]:
    """A report through the hands of a client and of server 0: seconds by part."""
    plan, times = one.plan, {}
    times["client: report"], drawn = seconds(one.draw)
    loaded = one.at(0, drawn)
    sums = RunningSums(plan, 0, lambda: None)
    sums._change([loaded.report], subtract=False)  # memory is new to it once
    sums = _again(sums)
    times["server: sums"], _ = seconds(lambda: sums._change([loaded.report], subtract=False))
    if plan.statement is not None:
        questions = Questions(plan, 0, bytes(32), sums.lifted)
        times["server: proof"], _ = seconds(lambda: questions.ask(loaded))
        context, seed = loaded.report.context, loaded.report.trees.master_seed
        assert seed is not None
        view = memoryview(b"".join(drawn.public))[-plan.statement.public_bytes :]
        segment = plan.statement.carries
        keys, roots = context.carry_keys(segment), context.roots(segment, seed, 0)
        times["server: of it carry trees"], _ = seconds(
            lambda: carries.evaluate(plan.statement, keys, roots, view, 0)  # type: ignore[arg-type]
        )
    return times


def _again(sums: RunningSums) -> RunningSums:
    sums._added = {}
    return sums


def sizes_of(plan: Plan) -> dict[str, int]:
    """Bytes of one client: up, in an epoch of a session, between servers."""
    none = dataclasses.replace(plan, proofs="none")
    found = {
        "upload": costs.client_bytes(plan),
        "upload above the plan without proofs": costs.client_bytes(plan) - costs.client_bytes(none),
        "a verdict": messages.max_bytes(plan, Kind.VERDICTS) // plan.max_clients,
    }
    if plan.statement is not None:
        shape = plan.statement.shape
        found |= {"carries": plan.statement.num_carries, "order": shape.order}
        found |= {"arity": shape.arity, "values": plan.statement.num_values}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ["TORCHFSL_THREADS"] = "1"
    torch.set_num_threads(1)
    made = plans()
    reports = {name: OneReport(plan, 0) for name, plan in made.items()}
    best: dict[str, dict[str, float]] = {name: {} for name in made}
    for _ in range(options.turns):
        for name, one in reports.items():
            for part, took in turn(one).items():
                best[name][part] = min(took, best[name].get(part, took))
    sizes = {name: sizes_of(plan) for name, plan in made.items()}
    for name in made:
        print(f"proofs = {name}")
        for what, size in sizes[name].items():
            print(f"  {what:42} {size:>12,}")
        for part, took in best[name].items():
            print(f"  {part:42} {1e3 * took:>12.1f} ms")
    if options.json:
        options.json.write_text(json.dumps({"sizes": sizes, "seconds": best}, indent=2) + "\n")


if __name__ == "__main__":
    main()
