"""Averages, servers' optimizers and clients' optimizer state, compared on small tasks.

Every run adds the clients' updates in the clear (`plain`), which gives the model of both servers,
bit-identical. Finished runs are kept in RUNS/averages.jsonl: the same command again continues, and
after a change of a task that file has to go.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch

import torchfsl
from scripts.reproduction.averages_tasks import SETTINGS, Setting, TwoTowerTask, train
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from training.data.prf import Stream
from training.local import freeze_statistics

EVERY: Final = 5
"""Rounds between two points of a curve."""
TITLE: Final = "averages by servers' optimizers by clients' optimizer state, small tasks"
Average = Literal["clients", "rows"]
State = Literal["fresh", "own"]
Curve = list[float]

SERVERS: Final[dict[str, OptimizerSettings]] = {
    **{f"SGD({rate})": torchfsl.optim.SGD(rate) for rate in (1, 3)},
    **{
        f"SGD({rate}, momentum={momentum})": torchfsl.optim.SGD(rate, momentum=momentum)
        for rate, momentum in ((2, 0.8), (2.5, 0.8), (1, 0.9), (1.5, 0.9), (2, 0.9))
    },
    "LazyAdam(0.01)": torchfsl.optim.LazyAdam(0.01),
}
FORMER: Final = "clients/SGD(1)/fresh"
DEFAULT: Final = "clients/SGD(2.5, momentum=0.8)/fresh"
COMBINATIONS: Final = (
    FORMER, DEFAULT, "clients/SGD(1, momentum=0.9)/fresh", "clients/SGD(3)/fresh",
    "rows/SGD(1)/fresh", "clients/SGD(2.5, momentum=0.8)/own",
)  # fmt: skip
"""Every task runs them."""

FURTHER: Final = (
    "clients/SGD(1)/own", "clients/SGD(2, momentum=0.9)/own", "clients/LazyAdam(0.01)/fresh",
    "clients/SGD(2, momentum=0.9)/fresh", "clients/SGD(2, momentum=0.8)/fresh",
    "clients/SGD(1.5, momentum=0.9)/fresh",
)  # fmt: skip
"""The two-tower task runs these too."""


def run(
    setting: Setting, average: Average, server_optimizer: OptimizerSettings, state: State, seed: int
) -> Curve:
    """Train one task and return its metric after rounds 5, 10, 15 and so on."""
    task = setting.make(seed)
    model = task.build_model()
    freeze_statistics(model)
    optimizer = setting.optimizer(model.parameters(), lr=setting.rate)
    turns: Counter[int] = Counter()
    finished = itertools.count(1)

    def train_client(client: int) -> float:
        batches = task.work(turns[client], client).batches
        turns[client] += 1
        return train(model, optimizer, batches)

    def evaluate() -> float:
        is_due = next(finished) % EVERY == 0
        return task.evaluate(model)[task.metric] if is_due else 0.0

    shape: dict[str, Any] = {"max_clients": setting.per_round, "above_break_even": "dense"}
    shape["rows_per_client"] = task.rows_per_client or None
    fed = torchfsl.Federated(model, optimizer, average=average, **shape)
    options: dict[str, Any] = {"rounds": setting.rounds, "clients_per_round": setting.per_round}
    options |= {"protocol": "plain", "seed": seed, "progress": False, "evaluate": evaluate}
    options |= {"optimizer_state": state, "server_optimizer": server_optimizer}
    options["rows"] = lambda client: task.work(turns[client], client).rows
    result = torchfsl.simulate(fed, range(task.num_clients), train_client, **options)
    return result.column("metric")[EVERY - 1 :: EVERY]


def central(setting: Setting, seed: int, epochs: int = 10) -> Curve:
    """Train on all clients' batches in a random order and return the metric after every epoch.

    The batches are those that clients make; of a task with one client they mix all data.
    """
    task = setting.make(seed)
    model = task.build_model()
    freeze_statistics(model)
    optimizer = setting.optimizer(model.parameters(), lr=setting.rate)
    curve = []
    for epoch in range(epochs):
        works = [task.work(epoch, client) for client in range(task.num_clients)]
        batches = [batch for work in works for batch in work.batches]
        order = Stream(seed, "central", epoch).permutation(len(batches))
        train(model, optimizer, tuple(batches[place] for place in order))
        curve.append(task.evaluate(model)[task.metric])
    return curve


def averages(runs: Path, seeds: list[int]) -> dict[str, Any]:
    """Run all combinations and experiments."""
    torch.set_num_threads(1)
    logging.getLogger("torchfsl").setLevel(logging.ERROR)
    kept = Kept(runs / "averages.jsonl")
    found: dict[str, dict[str, dict[str, Curve]]] = {"causes": {}, "runs": {}}
    for kind, name, seed, make in _jobs(seeds):
        found[kind].setdefault(name, {})[str(seed)] = kept.curve(f"{kind}/{name}", seed, make)
    for what, combination in (("default", DEFAULT), ("by rows, SGD(1)", "rows/SGD(1)/fresh")):
        found["causes"][what] = found["runs"][f"two-tower/{combination}"]
    titles = {name: setting.title for name, setting in SETTINGS.items()}
    return {"default": DEFAULT, "former": FORMER, "titles": titles, **found}


def _jobs(seeds: list[int]) -> Iterator[tuple[str, str, int, Callable[[int], Curve]]]:
    """Kind, name, seed and function of every run, those that decide most first."""
    pairs = list(itertools.product(COMBINATIONS, SETTINGS))
    pairs += itertools.product(FURTHER, ["two-tower"])
    made = [("runs", f"{task}/{c}", _combination(SETTINGS[task], c)) for c, task in pairs]
    first = 2 * len(SETTINGS)
    causes = [("causes", name, make) for name, make in _causes().items()]
    for kind, name, make in [*made[:first], *causes, *made[first:]]:
        for seed in seeds:
            yield kind, name, seed, make


def _combination(setting: Setting, name: str) -> Callable[[int], Curve]:
    average, optimizer, state = name.split("/")
    kinds = cast(Average, average), cast(State, state)
    return lambda seed: run(setting, kinds[0], SERVERS[optimizer], kinds[1], seed)


def _causes() -> dict[str, Callable[[int], Curve]]:
    """Experiments on the two-tower task, from central training to today's federated one."""
    base = SETTINGS["two-tower"]

    def setting(**options: Any) -> Setting:
        per_round = options.get("clients", base.per_round)
        make = functools.partial(TwoTowerTask, **options)
        return dataclasses.replace(base, make=make, per_round=per_round)

    def federated(name: str = DEFAULT, **options: Any) -> Callable[[int], Curve]:
        return _combination(setting(**options), name)

    return {
        "central": lambda seed: central(setting(clients=1), seed),
        "central, every batch from the 25 users of one client": lambda seed: central(base, seed),
        "default, interactions dealt at random to the 20 clients": federated(spread=True),
        "SGD(1), interactions dealt at random to the 20 clients": federated(FORMER, spread=True),
        "default, 5 clients of 100 users": federated(clients=5),
        "default, 4 of 16 local steps": federated(steps=4),
    }


class Kept:
    """Finished runs, one JSON line each.

    Attributes:
        found: Curves by name and seed.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self.found: dict[str, dict[str, Curve]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in map(json.loads, lines):
            self.found.setdefault(line["name"], {})[str(line["seed"])] = line["curve"]

    def curve(self, name: str, seed: int, make: Callable[[int], Curve]) -> Curve:
        """The curve of a run, which is made if it is not there."""
        of_seed = self.found.setdefault(name, {})
        if str(seed) not in of_seed:
            curve = [round(value, 4) for value in make(seed)]
            print(f"{name} seed {seed}: best {max(curve):.3f}, last {curve[-1]:.3f}", flush=True)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "seed": seed, "curve": curve}) + "\n")
            of_seed[str(seed)] = curve
        return of_seed[str(seed)]
