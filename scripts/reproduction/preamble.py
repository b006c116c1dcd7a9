"""Random blocks drawn in secret, after PREAMBLE, against the largest ones at equal bytes.

The data are TREC's sentences at 20 clients, with one seed. The model is a small TextCNN; all its
parameters, also the word table, are cut into blocks of 32 values. All three ways of choosing send
the same number of blocks and so the same bytes. The program computes the noise that each way needs,
and does not train with it.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Final

from scripts.bench import measure as bench_measure
from scripts.reproduction.accuracy import LAST
from scripts.reproduction.runs import Progress, changed, curve, data_folder, run_or_read, summarised
from torchfsl.fsl import privacy
from torchfsl.fsl.plan.plan import Plan
from training.checkpoint import CheckpointFolder
from training.config import Config
from training.presets import PRESETS
from training.sections import Local, Partition, Rest

SHARE, BLOCK, CLIENTS, ROUNDS = 0.04, 32, 20, 60
WAYS: Final = {
    "dense": Rest(),
    "topk": Rest("blocks", SHARE, BLOCK),
    "topk-dropped": Rest("blocks", SHARE, BLOCK, error_feedback=False),
    "sample": Rest("sample", SHARE, BLOCK),
}
EPSILON, DELTA, BOUND = 8.0, 1e-5, 1 << 20


def preamble(data: Path | None, runs: Path, rounds: int) -> dict[str, Any]:
    """Train each way, and find the noise."""
    trec = data_folder(data, "preamble", "trec")
    found: dict[str, Any] = {}
    for name, rest in WAYS.items():
        print(name, flush=True)
        folder = runs / "preamble" / name
        summary = run_or_read(config_of(trec, rest, rounds), folder, Progress("accuracy"))
        points = curve(folder, "accuracy")
        found[name] = {
            "accuracy": sum(value for _, value in points[-LAST:]) / len(points[-LAST:]),
            "curve": [(number, round(accuracy, 4)) for number, accuracy in points],
            **summarised(summary, "exact_rounds", "clipped_values", "segments"),
        }
    saved = CheckpointFolder(runs / "preamble" / "sample" / "checkpoint").load()
    assert saved is not None
    plan = Plan.from_json(saved.plan)
    return {
        "environment": bench_measure.environment(),
        "rounds": rounds,
        "clients": CLIENTS,
        "block": BLOCK,
        "share": SHARE,
        "seed": 0,
        "ways": found,
        "noise": noise(plan, rounds),
    }


def config_of(trec: Path, rest: Rest, rounds: int) -> Config:
    """One run."""
    return changed(
        PRESETS["textcnn"],
        data=str(trec),
        rounds=rounds,
        clients_per_round=CLIENTS,
        aggregation="plain",
        above_break_even="keep",
        eval_every=5,
        checkpoint_every=20,
        threads=1,
        partition=Partition(clients=CLIENTS),
        sentences={"dim": 48, "maps": 32, "table": "rest"},
        local=Local(optimizer="adam", lr=1e-3, batch_size=64),
        rest=rest,
    )


def noise(plan: Plan, rounds: int) -> dict[str, Any]:
    """Standard deviation of a server's noise, as a multiple of the norm of a client's whole change.

    The change is taken to be spread evenly over its blocks: drawn and scaled it then has
    sqrt(m / k) times its norm, which is what the bound of drawn blocks must let through.
    """
    (segment,) = plan.segments
    grown = math.sqrt(segment.m / segment.k_max)
    bound = dataclasses.replace(plan, l2_bound=BOUND)
    terms = {"epsilon": EPSILON, "delta": DELTA, "rounds": rounds}
    known = privacy.calibrate(bound, **terms).noise_sigma / BOUND
    secret = privacy.calibrate(bound, **terms, sampled_blocks=True).noise_sigma / BOUND
    return {
        "epsilon": EPSILON,
        "delta": DELTA,
        "blocks": segment.m,
        "chosen": segment.k_max,
        "topk": known,
        "drawn_in_public": known * grown,
        "drawn_in_secret": secret * grown,
    }
