"""Costs of a round of SESA and of others, and accuracy by choice of shards.

The paper (Sami and Guler, "Secure Submodel Aggregation for Resource-Aware Federated Learning") has
one figure, of accuracy. It does not have seconds or bytes. Its claims are in docs/results/sesa.md.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import measure as bench_measure
from scripts.reproduction import runs as kept
from scripts.reproduction.baselines import secagg_plus
from scripts.reproduction.sefl_costs import play_audited
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import tensor_spans
from torchfsl.submodel.update import SegmentUpdate, Update
from training.aggregations.audit import Audit
from training.config import Aggregation, Config
from training.data.leaf import is_leaf
from training.federation import build
from training.presets import PRESETS
from training.sections import Sesa
from training.tasks.build import SYNTHETIC, build_task
from training.tasks.task import Ids, Task

AGGREGATIONS: tuple[Aggregation, ...] = ("plain", "dense", "fsl", "sesa")
SHARES = 5
"""Neighbours of a SecAgg+ client, itself too; as in the table of baselines."""

COHORT, DROPOUTS, ROUNDS, EVERY = 20, 0.1, 60, 10
RATE, SCALED_RATE = 0.2, 0.05
"""Of clients. Scaled activations are up to four times as large: at 0.2 they train badly or not."""
CHOICES: dict[str, tuple[Sesa, float]] = {
    "full": (Sesa(budgets=(1.0,)), RATE),
    "random": (Sesa(), RATE),
    "random, scaled": (Sesa(scaled=True), SCALED_RATE),
    "rolling": (Sesa(shards=200, choice="rolling", scaled=True, mean="owners"), SCALED_RATE),
    "static": (Sesa(choice="static", scaled=True, mean="owners"), SCALED_RATE),
}
"""In this order: full models of all clients, SESA, SESA with the others' scaling, FedRolex,
HeteroFL."""
SPEED_ROUNDS = 160
SPEED = ("full", "random", "rolling")
"""Choices whose speed is compared, each at its best rate of RATES."""
RATES = (0.05, 0.1, 0.2)


def shapes() -> dict[str, Config]:
    """Runs in the table of costs: the paper's network and cohort, and the preset's CNN."""
    mlp, cnn = PRESETS["mlp-mnist-widths"], PRESETS["cnn-mnist-widths"]
    return {
        "MLP": dataclasses.replace(
            mlp, data=SYNTHETIC, clients_per_round=100, dropouts=0.1, sesa=Sesa(collusion=0.5)
        ),
        "MnistCNN": dataclasses.replace(cnn, data=SYNTHETIC, dropouts=0.1),
    }


def sesa(
    data: Path | None, runs: Path, seeds: list[int], rounds: int, flower_python: str | None
) -> dict[str, Any]:
    """Costs of one round and accuracy over several seeds; runs of the latter resume."""
    return {
        "environment": bench_measure.environment(),
        "costs": {name: _costs(config, flower_python) for name, config in shapes().items()},
        "accuracy": {
            name: {str(seed): curve(data, runs, name, seed, rounds) for seed in seeds}
            for name in CHOICES
        },
    }


def speed(data: Path | None, runs: Path, seeds: list[int], rounds: int) -> dict[str, Any]:
    """Accuracy by round of three choices, each at the rate that is best on held-out pictures."""
    trials = {
        name: {
            f"{rate:g}": curve(data, runs, name, seeds[0], rounds, rate, held_out=True)
            for rate in RATES
        }
        for name in SPEED
    }
    best = {name: max(of, key=lambda rate: _final(of[rate])) for name, of in trials.items()}
    return {
        "rounds": rounds,
        "trials": {n: {r: _final(run) for r, run in of.items()} for n, of in trials.items()},
        "rates": {name: float(rate) for name, rate in best.items()},
        "accuracy": {
            name: {
                str(seed): curve(data, runs, name, seed, rounds, float(best[name]))
                for seed in seeds
            }
            for name in SPEED
        },
    }


WRITERS = ("full", "random", "rolling")


def writers(data: Path | None, runs: Path, seeds: list[int], rounds: int) -> dict[str, Any]:
    """Accuracy where each client is a writer: of FEMNIST, or without it of a made federated set."""
    real = data is not None and is_leaf(str(data / "femnist"))
    return {
        "set": "FEMNIST" if real else "a made federated set with writers",
        "rounds": rounds,
        "accuracy": {
            name: {
                str(seed): curve(
                    data, runs, name, seed, rounds, source="femnist" if real else SYNTHETIC
                )
                for seed in seeds
            }
            for name in WRITERS
        },
    }


def _final(run: dict[str, Any]) -> float:
    """The mean of the last three evaluations."""
    return float(np.mean([value for _, value in run["curve"][-3:]]))


def curve(
    data: Path | None,
    runs: Path,
    name: str,
    seed: int,
    rounds: int,
    rate: float | None = None,
    *,
    held_out: bool = False,
    source: str = "mnist",
) -> dict[str, Any]:
    """A run summed in the clear; `plain` ends with the model of `sesa` where that is possible."""
    preset, (settings, usual) = PRESETS["mlp-mnist-widths"], CHOICES[name]
    rate = usual if rate is None else rate
    config = kept.changed(
        preset,
        data=_place(data, source, preset.data),
        partition=preset.partition
        if source == "mnist"
        else dataclasses.replace(preset.partition, scheme="writers"),
        rounds=rounds,
        clients_per_round=COHORT,
        dropouts=DROPOUTS,
        eval_every=EVERY,
        seed=seed,
        aggregation="plain",
        threads=1,
        local={"lr": rate},
        sesa=settings,
        evaluate="validation" if held_out else "test",
    )
    folder = runs / "sesa" / f"{name.replace(', ', '-')}-seed{seed}"
    if rate != usual or held_out:
        folder = folder.with_name(f"{folder.name}-rate{rate:g}" + "-heldout" * held_out)
    if source != "mnist":
        folder = folder.with_name(f"{folder.name}-{source}")
    print(f"{name}, seed {seed}", flush=True)
    with kept.locked(folder.with_suffix(".lock")):  # several processes may share the work
        summary = kept.run_or_read(config, folder, kept.Progress("accuracy"))
    return {
        "curve": kept.curve(folder, "accuracy", rounds),
        **kept.summarised(summary, "rounds", "exact_rounds", "clipped_values", "model_sha256"),
    }


def _place(data: Path | None, source: str, usual: str) -> str:
    """The folder or name of a data set."""
    if source == SYNTHETIC:
        return SYNTHETIC
    return usual if data is None else str(data / source)


def _costs(config: Config, flower_python: str | None) -> dict[str, Any]:
    """One round of every scheme on equal shapes, without dropouts and without training."""
    measured = {
        name: one_round(dataclasses.replace(config, aggregation=name)) for name in AGGREGATIONS
    }
    parameters = sum(
        int(s["positions"]) * int(s["values_per_position"]) for s in measured["sesa"]["segments"]
    )
    flower = secagg_plus(flower_python, parameters, config.clients_per_round, SHARES)
    return {
        "parameters": parameters,
        "clients": config.clients_per_round,
        "planned_dropouts": config.num_dropouts,
        **measured,
        "secagg_plus": flower,
    }


def one_round(config: Config) -> dict[str, Any]:
    """Bytes by width and processor seconds of one round; checks the sums against the plaintext."""
    task = build_task(config)
    federation = build(config, task)
    aggregation, plan, widths = federation.audit.aggregation, federation.plan, task.widths
    assert widths is not None
    work = {client: _work(task, plan, client) for client in widths.cohort(1)}
    rows, updates = ({client: one[i] for client, one in work.items()} for i in (0, 1))
    played = play_audited(Audit(aggregation), 1, updates, rows)
    receipts = played.closed.receipts
    return {
        "bytes": {
            name: _mean([r for c, r in receipts.items() if widths.of(c) == number])
            for number, name in enumerate(widths.names)
        },
        "cpu_seconds": played.seconds,
        "server_share": played.of_servers / played.seconds,
        "collusion": getattr(plan, "collusion", 0),
        "segments": [segment.describe() for segment in plan.segments],
        "peak_memory_bytes": bench_measure.peak_memory_bytes(),
    }


def _work(task: Task, plan: SubmodelPlan, client: int) -> tuple[dict[str, Ids], Update]:
    """The rows of a client by segment, and a random update of them."""
    widths = task.widths
    assert widths is not None
    rows = widths.table_rows(widths.shards(1, client))
    draw = np.random.default_rng(client)
    most = plan.encoding.q_max // 4
    indices, update = {}, {}
    for segment in plan.segments:
        if segment.is_dense:
            values = draw.integers(-most, most, size=(segment.m, 1))
            update[segment.name] = SegmentUpdate(None, values)
            continue
        own = [rows[t.name] + span.start for t, span in tensor_spans(segment)]
        indices[segment.name] = np.concatenate(own)
        values = draw.integers(-most, most, size=(len(indices[segment.name]), segment.tau))
        update[segment.name] = SegmentUpdate(indices[segment.name], values)
    return indices, update


def _mean(receipts: list[Receipt]) -> dict[str, Any]:
    """Of clients of one width, which send equal numbers of bytes and receive nearly as equal."""
    return {
        "upload": float(np.mean([r.upload_bytes for r in receipts])),
        "download": float(np.mean([r.download_bytes for r in receipts])),
        "phases": {
            name: float(np.mean([r.phases[name] for r in receipts])) for name in receipts[0].phases
        },
    }
