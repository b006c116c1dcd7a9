"""The systems of all papers on one task: MNIST, nine clients of 100 samples each, the same test.

Who shares one model (`plain`, `dense`, `fsl`, `sesa`, `sefl`, SecAgg+) trains the SESA paper's MLP,
all clients all of it, so that one seed gives one model whoever sums the updates; bytes and seconds
differ. PrivHFL's clients keep networks of their own; its figures are those of the cells that
`privhfl-accuracy` and `privhfl-secure` have run. `systems_report` makes docs/systems.md of both.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import models
from scripts.bench import measure as bench_measure
from scripts.reproduction.baselines import secagg_plus
from scripts.reproduction.privhfl_cells import BASE
from training.config import Aggregation, Config
from training.data.prf import Stream
from training.federation import build
from training.presets import PRESETS
from training.privhfl.tasks import Population, Private, load_population
from training.sections import Sesa
from training.tasks.classification import ClassificationTask, LocalPlan, ShardedTask
from training.tasks.task import Ids, Task
from training.tasks.widths import Widths
from training.trainer import RoundRecord, Trainer

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
ROUNDS, EVERY, EPOCHS = 30, 5, 2
SECAGG_SHARES = 5
_SESA = Sesa(budgets=(1.0,), collusion=0.25)
"""All clients train everything; two of nine may collude with the server."""


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """Pictures that are standardised already; no augmentation."""

    images: Tensor
    labels: npt.NDArray[np.int64]

    def inputs(self, positions: Ids, stream: Stream | None) -> tuple[Tensor, ...]:
        """Float32 `[B, channels, side, side]`."""
        return (self.images[torch.from_numpy(positions)],)


def systems(data: Path | None, rounds: int, flower_python: str | None) -> dict[str, Any]:
    """Run the same rounds by every way of summing updates."""
    torch.set_num_threads(1)
    settings = BASE["mnist"]
    source = "" if data is None else str(data / "mnist")
    population = load_population(dataclasses.replace(settings, data=source))
    runs = {name: _run(name, population, rounds) for name in AGGREGATIONS}
    if len({run["model_sha256"] for run in runs.values()}) != 1:
        raise RuntimeError("the systems hold other models after equal rounds")
    parameters = sum(p.numel() for p in models.MLP().parameters())
    return {
        "environment": bench_measure.environment(),
        "parameters": parameters,
        "clients": settings.clients,
        "private": settings.private,
        "rounds": rounds,
        "runs": runs,
        "secagg_plus": secagg_plus(flower_python, parameters, settings.clients, SECAGG_SHARES),
    }


def _run(name: Aggregation, population: Population, rounds: int) -> dict[str, Any]:
    """One run: mean bytes of a client and round, processor seconds of all parties and rounds."""
    print(name, flush=True)
    clients = len(population.clients)
    preset = PRESETS["mlp-mnist-widths"]
    config = dataclasses.replace(
        preset,
        rounds=rounds,
        clients_per_round=clients,
        eval_every=EVERY,
        aggregation=name,
        threads=1,
        local=dataclasses.replace(preset.local, lr=0.1, epochs=EPOCHS),
        sesa=_SESA,
    )
    task = _task(config, population)
    federation = build(config, task)
    records: list[RoundRecord] = []
    begun = time.process_time()
    Trainer(config, task, federation).run(1, records.append)
    if not all(record.exact for record in records):
        raise RuntimeError(f"{name}: a round's sums are not the plaintext's")
    return {
        "upload_bytes": float(np.mean([r.upload_bytes for r in records])),
        "download_bytes": float(np.mean([r.download_bytes for r in records])),
        "cpu_seconds": time.process_time() - begun,
        "curve": [(r.round, r.metrics["accuracy"]) for r in records if r.metrics],
        "model_sha256": federation.model_sha256(),
    }


def _task(config: Config, population: Population) -> Task:
    sizes = [len(one.labels) for one in population.clients]
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(start, stop) for start, stop in itertools.pairwise(ends)]

    def sharded() -> models.Sharded:
        return models.Sharded(models.MLP(), shards=_SESA.shards, scaled=_SESA.scaled)

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
    assert isinstance(layout, models.Sharded)
    clients = len(parts)
    widths = Widths(_SESA, layout, seed=config.seed, num_clients=clients, cohort=clients)
    return ShardedTask(task, widths)


def _examples(samples: Private) -> TensorExamples:
    return TensorExamples(samples.images, samples.labels.numpy())
