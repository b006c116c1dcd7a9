"""Servers that evaluate twice, in one piece and by shards, and compare byte for byte."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.support.federation import make_plan, make_segment, make_state
from torchfsl.fsl import privacy
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import Grid, InProcessGrid, OpenGrid
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Indices


def shard_plan(*, clients: int = 8, epochs: int = 1) -> Plan:
    """Trees of every kind in numbers that no number of shards divides, and dense values."""
    nu = 0 if epochs > 1 else 2
    return make_plan(
        make_segment("table", "rows", (41, 3), k_max=4, tau=3, theta=5, stash=2, retrieve=True),
        make_segment("blocks", "rows", (50, 2), k_max=2, tau=2, theta=7, nu=nu, stash=1,
                     retrieve=True),
        make_segment("few", "scalars", (37,), k_max=3, theta=5, nu=nu, stash=1),
        make_segment("whole", "scalars", (21,), k_max=2),
        make_segment("bias", "dense", (3,)),
        max_clients=clients,
        max_epochs=epochs,
    )  # fmt: skip


def counted_noise(seed: int) -> privacy.Draw:
    """Noise that two evaluators draw alike; for tests alone."""
    rng = np.random.default_rng(seed)

    def draw(sigma: int, count: int) -> Indices:
        return rng.integers(-3 * sigma, 3 * sigma + 1, size=count)

    return draw


class Twins:
    """An `Evaluator` that is both, and asserts that both say the same.

    Attributes:
        compared: how often each method was.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        draw: privacy.Draw,
        release: Callable[[], None],
        *,
        open_grid: OpenGrid,
        checkpoint_windows: int = 2,
    ) -> None:
        self.local = LocalEvaluator(plan, party, counted_noise(party), release)
        self.sharded = ShardedEvaluator(
            plan, party, counted_noise(party), release,
            open_grid=open_grid, checkpoint_windows=checkpoint_windows,
        )  # fmt: skip
        self.compared = {"answer": 0, "folds": 0, "share": 0}

    def take(self, report: Report) -> None:
        self.local.take(report)
        self.sharded.take(report)

    def answer(
        self, report: Report, model: ServerModel, waiting: Sequence[Report] = ()
    ) -> AnswerBody:
        first, second = (one.answer(report, model, waiting) for one in (self.local, self.sharded))
        assert bytes(first.sealed) == bytes(second.sealed)
        self.compared["answer"] += 1
        return second

    def close(self) -> None:
        self.local.close()
        self.sharded.close()

    def folds(self, reports: Mapping[int, Report], verify_key: bytes) -> dict[int, bytes]:
        first, second = (one.folds(reports, verify_key) for one in (self.local, self.sharded))
        assert first == second
        self.compared["folds"] += 1
        return second

    def settle(self, reports: Sequence[Report]) -> bool:
        self.local.settle(reports)
        return self.sharded.settle(reports)

    def share(self, reports: Sequence[Report]) -> Buffer:
        first, second = (one.share(reports) for one in (self.local, self.sharded))
        assert bytes(first) == bytes(second)
        self.compared["share"] += 1
        return second

    def end(self) -> None:
        self.local.end()
        self.sharded.end()


def in_process(size: int, grids: list[InProcessGrid] | None = None) -> OpenGrid:
    """Opens grids of this process, and notes them."""

    def open_grid(plan: Plan, party: int) -> Grid:
        grid = InProcessGrid(plan, party, size)
        if grids is not None:
            grids.append(grid)
        return grid

    return open_grid


def twin_servers(plan: Plan, open_grid: OpenGrid, **options: int) -> tuple[Server, Server]:
    """Both servers, with twins."""
    make = functools.partial(Twins, open_grid=open_grid, **options)

    def one(party: int) -> Server:
        return Server(party, plan=plan, model=ServerModel(make_state(plan)), evaluator=make)

    return one(0), one(1)
