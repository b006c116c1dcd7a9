"""Costs of proofs at DIN's published shape: bytes of every party, processor time by part.

    python -m scripts.bench.proofs [--turns 3] [--json FILE]

The plan is that of `scripts.bench.round`, with a count column and a bound of 2**16 (norm 1). A
client draws a report and server 0 evaluates it, both in one thread. They do this in turns without
proofs, with `lanes` and with `norm`, and with both proofs for weights up to ten instead of counts.
Turns of all plans alternate, and the least processor time of the turns counts.

A server makes the sums over leaves while it adds a report up. Their cost is the time of adding
above the time without proofs. There is no transport and no training.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from scripts.bench.round import ROWS, federated
from scripts.parties import random_update
from scripts.program import Found, Options, option, program
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

BOUND = 1 << 16
WEIGHT = 10


def plans() -> dict[str, Plan]:
    """DIN's plan by `proofs`: counted, and with weights."""
    sizes = {"max_clients": 100, "rows_per_client": ROWS}
    plan = federated().make_plan(**sizes, average="rows", l2_bound=BOUND)
    weights = dataclasses.replace(plan, lane="weight", max_weight=WEIGHT)
    made = {name: dataclasses.replace(plan, proofs=name) for name in PROOFS}
    return made | {
        f"{name}, weights": dataclasses.replace(weights, proofs=name) for name in PROOFS[1:]
    }


class OneReport:
    """One client's report under one plan, and what both servers have of it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.update = plan, random_update(plan, seed, 200)
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
        about = {"plan": self.plan, "round_number": 1, "client": 0, "model": b"", "commitment": b""}
        about |= {"nonce": nonce, "hint_nonce": drawn.context.hint_nonce}
        report = Report(trees=record, public=public, masked=masked, **about)
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


@program(option("--turns", 3))
def main(options: Options) -> Found:
    """Measure and print."""
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
    return {"sizes": sizes, "seconds": best}
