"""SEFL's language models: perplexity by dropouts (table 1) and by block size (figure 4).

Deng, Wang, Meng et al., "A Secure and Efficient Federated Learning Framework for NLP". Table 1 is
summed by SEFL, and once more in the clear, which must end with the same model; figure 4 in the
clear, on the same quantised updates as under any aggregation.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import homomorphic
from scripts.bench import measure as bench_measure
from scripts.reproduction import sefl_costs
from scripts.reproduction.results import read_results, write_result
from scripts.reproduction.runs import Progress, changed, curve, locked, run_or_read, summarised
from training.config import Config
from training.federation import build
from training.presets import PRESETS
from training.sections import Language, Sefl
from training.tasks.build import build_task
from training.trainer import Trainer

MODELS = ("lstm-wikitext2", "transformer-wikitext2")
DROPOUTS = (0.0, 0.25, 0.5, 0.75)
BLOCKS = (1, 4, 8, 16, 32)
TABLE_BLOCK = 8
"""Table 1 is of block-Hankel layers, of a block size that the paper does not give."""
COHORTS = {1: 8, 4: 4}
"""Clients per round of table and figure: with 75 % dropouts, two of 8 are left. In a few rounds, a
model's learning depends on the number of successive steps rather than on how many clients take them
at once."""
ROUNDS = {1: 14, 4: 24}
UNTIED = Language(decoder="untied", rows=0.05)
"""Model whose costs are also measured; clients send its input table by rows."""
VALID = 60_000
"""Words of the validation text that evaluations read."""
_COUNTS = "rounds", "exact_rounds", "clipped_values", "dropouts_per_round"


def forms(blocks: Sequence[int] = BLOCKS) -> dict[str, Language]:
    """By name, the models of figure 4: blocks in the layers alone, or also in the tables.

    Args:
        blocks: block sizes, of which the first is 1.
    """
    whole = Language(valid_tokens=VALID)
    layers = {f"{b}": dataclasses.replace(whole, block=b) for b in blocks}
    tables = {
        f"{b} tables": dataclasses.replace(whole, block=b, block_embedding=b) for b in blocks[1:]
    }
    return layers | tables


def table1(data: Path | None, runs: Path, seeds: list[int], rounds: int) -> dict[str, Any]:
    """Perplexity by model, share of dropouts and seed."""

    def config(model: str, share: float, seed: int) -> Config:
        return config_of(data, model, f"{TABLE_BLOCK}", 1, seed, rounds, share)

    def by_share(make: Callable[[str, float], Any]) -> dict[str, Any]:
        return {m: {f"{share:g}": make(m, share) for share in DROPOUTS} for m in MODELS}

    def by_seed(model: str, share: float) -> dict[str, Any]:
        return {str(seed): encrypted(config(model, share, seed), runs) for seed in seeds}

    return {
        "environment": bench_measure.environment(),
        "block": TABLE_BLOCK,
        "runs": by_share(by_seed),
        "same": by_share(lambda model, share: same_model(config(model, share, seeds[0]), runs)),
    }


def figure4(
    data: Path | None, runs: Path, seed: int, rounds: int, blocks: Sequence[int]
) -> dict[str, Any]:
    """Perplexity by model and form, of one seed; costs under every aggregation."""

    def by_form(make: Callable[[Config], Any]) -> dict[str, Any]:
        def of(model: str) -> dict[str, Any]:
            return {f: make(config_of(data, model, f, 4, seed, rounds)) for f in forms(blocks)}

        return {model: of(model) for model in MODELS}

    whole = config_of(data, MODELS[0], "1", 4, seed, rounds)
    untied = dataclasses.replace(whole, language=UNTIED)
    return {
        "environment": bench_measure.environment(),
        "seed": seed,
        "runs": by_form(lambda config: kept(config, runs)),
        "costs": by_form(sefl_costs.by_aggregation),
        "untied": {"rows": UNTIED.rows, "costs": sefl_costs.by_aggregation(untied)},
    }


def parties(data: Path | None, paillier_python: str | None) -> dict[str, Any]:
    """Bytes and processor seconds of an LSTM by way to sum it, without training.

    Seconds of Paillier follow from rates that are measured on few numbers.

    Args:
        data: where language data lie; costs do not depend on it.
        paillier_python: a Python that has `phe` and `gmpy2`; None leaves the row out.
    """
    config = config_of(data, MODELS[0], "1", COHORTS[4], 0, 1)
    config = dataclasses.replace(config, language=UNTIED)
    rows = sefl_costs.by_aggregation(config)
    values = rows["plain"]["values"]
    figures = {"environment": bench_measure.environment(), "rows": rows, "paillier": None}
    if paillier_python:
        rates = homomorphic.paillier(paillier_python, 33, 40)
        if "skipped" in rates:
            raise RuntimeError(f"Paillier: {rates['skipped']}")
        figures["paillier"] = {
            "clients": COHORTS[4],
            "values": values,
            "upload_bytes": rates["bytes_per_value"] * values,
            "client_seconds": values / rates["encrypt"],
            "aggregator_seconds": COHORTS[4] * values / rates["add"],
            "key_holder_seconds": values / rates["decrypt"],
        }
    return figures


PAPER_SIZE = Language(vocabulary=0, width=200, decoder="untied")
"""The paper's LSTM: all 33,278 words, width 200."""
PAPER_WORDS = 33_278
PAPER_FORMS = {
    "1": PAPER_SIZE,
    **{f"{b}": dataclasses.replace(PAPER_SIZE, block=b) for b in (8, 32)},
    **{
        f"{b} tables": dataclasses.replace(PAPER_SIZE, block=b, block_embedding=b)
        for b in (4, 8, 16, 32)
    },
}


def papersize() -> dict[str, Any]:
    """Bytes and processor seconds of SEFL at the paper's size of the LSTM, by form; no training."""
    found = {}
    for form, language in PAPER_FORMS.items():
        whole = config_of(None, MODELS[0], "1", 4, 0, 1)
        language = dataclasses.replace(language, vocabulary=PAPER_WORDS)
        config = dataclasses.replace(whole, clients_per_round=2, language=language)
        found[form] = sefl_costs.one_round(config, "sefl")
        print(f"{form}: {found[form]['client_seconds']:.2f} s per client", flush=True)
    return {"environment": bench_measure.environment(), "forms": found}


NORM, NOISE = 10.0, 0.01
"""Figure 3: length to which clients scale updates down, and noise of CDP-FL over it."""
PRUNED = "8 tables"
ADDED = {"cdp": 0.5**0.5, "sefl": 1.0}
"""By method the noise of each of both servers over NOISE: CDP-FL adds one draw in all."""


def figure3(data: Path | None, runs: Path, seed: int, rounds: int) -> dict[str, Any]:
    """Perplexity with noise on the sum, of whole matrices and of blocks.

    CDP-FL has one trusted server that adds one draw. Its sums have the distribution of SEFL's with
    half of the variance at each server, and so are run. `none` clips and adds nothing.
    """

    def perplexity(model: str, form: str, share: float) -> float:
        config = config_of(data, model, form, 4, seed, rounds)
        noisy = Sefl(l2_norm=NORM, noise=NOISE * share)
        config = dataclasses.replace(config, aggregation="sefl", sefl=noisy)
        return float(kept(config, runs)["test_perplexity"])

    methods = {"none": 0.0, **ADDED}
    return {
        "environment": bench_measure.environment(),
        "l2_norm": NORM,
        "noise": NOISE,
        "runs": {
            model: {
                form: {name: perplexity(model, form, share) for name, share in methods.items()}
                for form in ("1", PRUNED)
            }
            for model in MODELS
        },
    }


def config_of(
    data: Path | None,
    model: str,
    form: str,
    number: int,
    seed: int,
    rounds: int,
    dropouts: float = 0.0,
) -> Config:
    """The preset's settings for the table or figure of this number, with a few changes."""
    preset = PRESETS[model]
    return dataclasses.replace(
        preset,
        data=preset.data if data is None else str(data / "wikitext2"),
        rounds=rounds,
        clients_per_round=COHORTS[number],
        dropouts=dropouts,
        eval_every=rounds,
        seed=seed,
        aggregation="plain",
        threads=1,
        language=forms()[form],
    )


def encrypted(config: Config, runs: Path) -> dict[str, Any]:
    """A run summed by SEFL to its end, with `plain_sha256`: the model of the same run in the clear.

    Raises:
        RuntimeError: the models differ, though both runs were made on one machine.
    """
    own, clear = (
        kept(dataclasses.replace(config, aggregation=name), runs) for name in ("sefl", "plain")
    )
    if own["machine"] != clear["machine"]:  # floats of training may differ
        return {**own, "plain_sha256": None}
    if own["model_sha256"] != clear["model_sha256"]:
        raise RuntimeError(f"{name_of(config)}: sefl and plain ended with different models")
    return {**own, "plain_sha256": clear["model_sha256"]}


def same_model(config: Config, runs: Path) -> dict[str, Any]:
    """The first round of a run under every aggregation, which must end with one model.

    Raises:
        RuntimeError: they do not, or a round was not exact.
    """
    done = runs / "sefl" / f"{name_of(config)}-same.json"
    if done.exists():
        earlier: dict[str, Any] = json.loads(done.read_text())
        return earlier
    config = changed(config, rounds=1, language={"valid_tokens": 2000})
    task, found = build_task(config), {}
    for name in sefl_costs.AGGREGATIONS:
        own = dataclasses.replace(config, aggregation=name)
        federation = build(own, task)
        if not Trainer(own, task, federation).run_round(1).exact:
            raise RuntimeError(f"{name_of(own)}: the round was not exact")
        found[name] = federation.model_sha256()
    if len(set(found.values())) != 1:
        raise RuntimeError(f"{name_of(config)}: the aggregations ended with different models")
    print(f"{name_of(config)}: one model under {', '.join(found)}", flush=True)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(found))
    return found


def name_of(config: Config) -> str:
    """A folder's name for a run."""
    own = config.language
    form = f"block{own.block}" + ("-tables" if own.block_embedding > 1 else "")
    return (
        f"{config.preset}-{form}-{config.clients_per_round}clients"
        f"-dropouts{config.dropouts:g}-seed{config.seed}"
        + ("" if config.aggregation == "plain" else f"-{config.aggregation}")
        + (f"-norm{config.sefl.l2_norm:g}" if config.sefl.l2_norm else "")
        + (f"-noise{config.sefl.noise:.3g}" if config.sefl.noise else "")
    )


def kept(config: Config, runs: Path) -> dict[str, Any]:
    """A run from the results, or made now, with machine and date.

    So a table or figure can be completed on another day or machine.
    """
    name = f"{name_of(config)}-{config.rounds}rounds"
    if name in read_results("sefl"):
        print(f"{name}: is here", flush=True)
    else:
        stamp = {"machine": bench_measure.machine(), "date": time.strftime("%Y-%m-%d")}
        write_result("sefl", name, {**run(config, runs), **stamp})
    return read_results("sefl")[name]


def run(config: Config, runs: Path) -> dict[str, Any]:
    """One run, which goes on where a shorter or interrupted one ended."""
    folder, rounds = runs / "sefl" / name_of(config), config.rounds
    print(folder.name, flush=True)
    with locked(folder.with_suffix(".lock")):  # several processes may share the work
        summary = run_or_read(config, folder, Progress("perplexity"))
    return {
        "curve": curve(folder, "perplexity", rounds),
        "test_perplexity": summary["test"]["perplexity"],
        "unigram_perplexity": summary["baselines"]["unigram_perplexity"],
        "values": sum(s["positions"] * s["values_per_position"] for s in summary["segments"]),
        **summarised(summary, *_COUNTS, "client_seconds", "model_sha256"),
    }
