"""The systems of all papers on one task, with the same test for all.

MNIST has nine clients of 100 samples each, and CIFAR-10 has six of 1000. Under `plain`, `dense`,
`fsl`, `sesa` and `sefl`, all clients share one model and train all of it. This model is the SESA
paper's MLP or, on CIFAR-10, a small CNN. Therefore one seed gives one model, whichever system sums
the updates; bytes and seconds differ.

SecAgg+ sums random updates of the same size. PrivHFL's clients keep separate networks. PrivHFL's
figures are those of the cells that `privhfl-accuracy` and `privhfl-secure` have run.
`systems_tables` makes the tables of docs/systems.md from both.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import models
from scripts.bench import measure as bench_measure
from scripts.reproduction.baselines import secagg_plus
from scripts.reproduction.privhfl_cells import BASE
from scripts.reproduction.runs import changed
from torchfsl.sesa import Sharded
from training.config import Aggregation, Config
from training.data.prf import Stream
from training.federation import build
from training.presets import PRESETS
from training.privhfl.settings import TaskName
from training.privhfl.tasks import Population, Private, load_population
from training.sections import Sesa
from training.tasks.classification import ClassificationTask, LocalPlan, ShardedTask
from training.tasks.task import Ids, Task
from training.tasks.widths import Widths
from training.trainer import RoundRecord, Trainer

AGGREGATIONS: tuple[Aggregation, ...] = tuple(
    way for way in get_args(Aggregation) if way != "central"
)
"""All aggregations except central training, which is a baseline for recommenders."""

ROUNDS, EVERY, EPOCHS = 30, 5, 2
SECAGG_SHARES = 5
_SESA: dict[TaskName, Sesa] = {
    "mnist": Sesa(budgets=(1.0,), collusion=0.25),
    "cifar10": Sesa(shards=2, budgets=(1.0,), collusion=0.25),
}
"""All clients train everything; two of nine, or one of six, may collude with the server.

Two hidden layers in four shards have 16 pairs of them, which more than six clients would have to
answer for.
"""


def cifar_cnn() -> nn.Module:
    """Two convolutions with pooling and 64 hidden units, on images `[B, 3, 24, 24]`."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 6 * 6, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


SHARED: dict[TaskName, Callable[[], nn.Module]] = {"mnist": models.MLP, "cifar10": cifar_cnn}
"""The model of those that have one."""


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """Pictures that are standardised already; no augmentation."""

    images: Tensor
    labels: npt.NDArray[np.int64]

    def inputs(self, positions: Ids, stream: Stream | None) -> tuple[Tensor, ...]:
        """Float32 `[B, channels, side, side]`."""
        return (self.images[torch.from_numpy(positions)],)


def systems(
    name: TaskName, data: Path | None, rounds: int, flower_python: str | None
) -> dict[str, Any]:
    """Run the same rounds by every way of summing updates."""
    torch.set_num_threads(1)
    settings = BASE[name]
    source = "" if data is None else str(data / name)
    population = load_population(dataclasses.replace(settings, data=source))
    runs = {way: _run(way, name, population, rounds) for way in AGGREGATIONS}
    if len({run["model_sha256"] for run in runs.values()}) != 1:
        raise RuntimeError("after the same rounds, the systems have different models")
    parameters = sum(p.numel() for p in SHARED[name]().parameters())
    return {
        "environment": bench_measure.environment(),
        "parameters": parameters,
        "clients": settings.clients,
        "private": settings.private,
        "rounds": rounds,
        "runs": runs,
        "secagg_plus": secagg_plus(flower_python, parameters, settings.clients, SECAGG_SHARES),
    }


def _run(name: Aggregation, data: TaskName, population: Population, rounds: int) -> dict[str, Any]:
    """One run: mean bytes of a client and round, processor seconds of all parties and rounds."""
    print(name, flush=True)
    clients = len(population.clients)
    config = changed(
        PRESETS["mlp-mnist-widths"],
        rounds=rounds,
        clients_per_round=clients,
        eval_every=EVERY,
        aggregation=name,
        threads=1,
        local={"lr": 0.1, "epochs": EPOCHS},
        sesa=_SESA[data],
    )
    task = _task(config, SHARED[data], population)
    federation = build(config, task)
    records: list[RoundRecord] = []
    begun = time.process_time()
    Trainer(config, task, federation).run(1, records.append)
    if not all(record.exact for record in records):
        raise RuntimeError(f"{name}: the sums of a round differ from the plaintext sums")
    return {
        "upload_bytes": float(np.mean([r.upload_bytes for r in records])),
        "download_bytes": float(np.mean([r.download_bytes for r in records])),
        "cpu_seconds": time.process_time() - begun,
        "curve": [(r.round, r.metrics["accuracy"]) for r in records if r.metrics],
        "model_sha256": federation.model_sha256(),
    }


def _task(config: Config, make: Callable[[], nn.Module], population: Population) -> Task:
    sizes = [len(one.labels) for one in population.clients]
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(start, stop) for start, stop in itertools.pairwise(ends)]

    def sharded() -> Sharded:
        return Sharded(make(), shards=config.sesa.shards, scaled=config.sesa.scaled)

    everybody = Private(
        torch.cat([one.images for one in population.clients]),
        torch.cat([one.labels for one in population.clients]),
    )
    task = ClassificationTask(
        _examples(everybody),
        _examples(population.test),
        parts=parts,
        model=sharded,
        local=LocalPlan(config.local.batch_size, config.local.epochs),
        seed=config.seed,
    )
    layout = task.build_model()
    assert isinstance(layout, Sharded)
    clients = len(parts)
    widths = Widths(config.sesa, layout, seed=config.seed, num_clients=clients, cohort=clients)
    return ShardedTask(task, widths)


def _examples(samples: Private) -> TensorExamples:
    return TensorExamples(samples.images, samples.labels.numpy())
