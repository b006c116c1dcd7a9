"""The tables of docs/results/sefl.md: language models summed by SEFL."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from scripts.reproduction.markdown import mean, seconds, size, stamp
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures, read_result
from scripts.reproduction.sefl import BLOCKS, MODELS
from scripts.reproduction.sefl_costs import AGGREGATIONS

NAMES: Final = dict(zip(MODELS, ("LSTM", "Transformer"), strict=True))
PAPER_TABLE1: Final = {
    MODELS[0]: {"0": 177.41, "0.25": 178.45, "0.5": 187.64, "0.75": 194.82},
    MODELS[1]: {"0": 263.78, "0.25": 279.81, "0.5": 301.04, "0.75": 310.12},
}


def _tests(runs: Figures) -> list[float]:
    return [run["test_perplexity"] for run in runs.values()]


def _change(value: Any, whole: Any, is_whole: bool) -> str:
    return "" if is_whole else f"{100 * (value / whole - 1):+.1f} %"


def _note(runs: list[Figures]) -> str:
    """Marks models that know hardly more than the frequencies of words."""
    shares = [run["curve"][-1][1] / run["unigram_perplexity"] for run in runs]
    return " (nothing learnt)" if np.mean(shares) > 0.95 else ""


def _runs(figures: Figures) -> list[Figures]:
    """All runs of a result, however deep."""
    found: list[Figures] = []
    stack = [figures["runs"]]
    while stack:
        for value in stack.pop().values():
            (found if "test_perplexity" in value else stack).append(value)
    return found


def _stamps(figures: Figures) -> str:
    """The stamp, with machines and dates of runs that were not all made with the table."""
    made = sorted({f"{r['machine']}, {r['date']}" for r in _runs(figures) if "machine" in r})
    return stamp(figures) + (f"\nRuns: {' and '.join(made)}.\n" if len(made) > 1 else "")


@table(
    "sefl-table1",
    "model | dropouts | paper |  | ours | ",
    stamp=_stamps,
    command="sefl --table 1",
)
def _dropouts(figures: Figures) -> Iterator[tuple[str, ...]]:
    for model, shares in figures["runs"].items():
        tests = {share: _tests(runs) for share, runs in shares.items()}
        paper = PAPER_TABLE1[model]
        for share, ours in tests.items():
            yield (
                NAMES[model],
                f"{100 * float(share):.0f} %",
                f"{paper[share]:.2f}",
                _change(paper[share], paper["0"], share == "0"),
                mean(ours, 1) + _note(list(shares[share].values())),
                _change(np.mean(ours), np.mean(tests["0"]), share == "0"),
            )


@table("sefl-same", "of the runs | count", figures="sefl-table1", stamp=None)
def _same(figures: Figures) -> list[tuple[Any, ...]]:
    """Counts of runs of the table: exact rounds, and models as in plaintext."""
    runs = _runs(figures)
    first = next(iter(figures["same"].values()))["0"]
    equal = sum(run["plain_sha256"] == run["model_sha256"] for run in runs)
    exact = sum(run["exact_rounds"] == run["rounds"] for run in runs)
    return [
        ("runs", len(runs)),
        ("exact in every round", exact),
        ("same model in the clear, on the same machine", equal),
        ("aggregations of the first round, with one model", ", ".join(f"`{n}`" for n in first)),
    ]


def _forms(model: str, figures: Figures) -> Iterator[Figures]:
    """The forms of one model: perplexity, and costs under every aggregation."""
    runs, costs = figures["runs"][model], figures["costs"][model]
    whole = runs["1"]
    for form, run in runs.items():
        perplexity, is_whole = run["test_perplexity"], form == "1"
        yield {
            "blocks": "whole matrices" if is_whole else form.split()[0],
            "place": "layers and tables" if "tables" in form else "layers" * (not is_whole),
            "values": run["values"],
            "fewer": whole["values"] / run["values"],
            "perplexity": f"{perplexity:.1f}{_note([run])}",
            "change": _change(perplexity, whole["test_perplexity"], is_whole),
            **costs[form],
        }


COST: Final = (
    "{WAY[upload_bytes]:size}, {WAY[client_seconds]:seconds}, {WAY[server_seconds]:seconds}"
)
"""Of one way to sum, after its name."""
for _model, _name in NAMES.items():
    table(
        f"sefl-{_name.lower()}",
        "blocks of | in | values | times fewer | perplexity |  | " + " | ".join(AGGREGATIONS),
        "{blocks} | {place} | {values:,} | {fewer:.2f} | {perplexity} | {change} | "
        + " | ".join(COST.replace("WAY", way) for way in AGGREGATIONS),
        figures="sefl-figure4",
        stamp=None,
        command="sefl --figure 4",
    )(functools.partial(_forms, _model))


@table(
    "sefl-untied",
    "decoder of the LSTM | `dense`, upload | `fsl`, upload",
    figures="sefl-figure4",
    stamp=_stamps,
    command="sefl --figure 4",
)
def _untied(figures: Figures) -> list[tuple[str, ...]]:
    untied, tied = figures["untied"]["costs"], figures["costs"][MODELS[0]]["1"]
    return [
        (decoder, *(size(costs[name]["upload_bytes"]) for name in ("dense", "fsl")))
        for decoder, costs in (("untied", untied), ("tied", tied))
    ]


MALICIOUS: Final = {
    "plain": "reads everything",
    "dense": "either server: spoils the sum",
    "fsl": "either server: spoils the sum. Clients are confined to one leaf per bin",
    "sefl": "aggregator: has one client's update opened, or the secret key. "
    "Key holder: spoils the sum",
    "paillier": "as `sefl`",
}


@table(
    "sefl-parties",
    " | upload a client | client | servers | a malicious server",
    "{name} | {upload_bytes:size} | {client_seconds:seconds} | {servers} | {malicious}",
    figures="sefl-tablecosts",
    command="sefl --table costs",
)
def _parties(figures: Figures) -> Iterator[Figures]:
    paillier = {"paillier": figures["paillier"]} if figures["paillier"] else {}
    for name, one in {**figures["rows"], **paillier}.items():
        parts = [one["server_seconds"]] if "server_seconds" in one else [one["aggregator_seconds"]]
        if (holder := one.get("key_holder_seconds")) is not None:
            parts = [parts[0] - holder if "server_seconds" in one else parts[0], holder]
        yield {
            **one,
            "name": f"`{name}`" if name != "paillier" else "Paillier, 3,072 bits",
            "servers": " + ".join(map(seconds, parts)),
            "malicious": MALICIOUS[name],
        }


@table(
    "sefl-tablepapersize",
    "blocks of | values | times fewer | upload | client | times less time | both servers",
    "{name} | {values:,} | {fewer:.1f} | {upload_bytes:size} | {client_seconds:seconds} | "
    "{gain:.1f} | {server_seconds:seconds}",
    command="sefl --table papersize",
)
def _papersize(figures: Figures) -> Iterator[Figures]:
    forms = figures["forms"]
    whole = forms["1"]
    for form, own in forms.items():
        block, _, place = form.partition(" ")
        where = "layers and tables" if place else "layers"
        yield {
            **own,
            "name": "whole matrices" if form == "1" else f"{block}, {where}",
            "fewer": whole["values"] / own["values"],
            "gain": whole["client_seconds"] / own["client_seconds"],
        }


@table(
    "sefl-figure3",
    "model | matrices | no noise | CDP-FL | SEFL",
    command="sefl --figure 3",
)
def _noise(figures: Figures) -> Iterator[tuple[str, ...]]:
    for model, forms in figures["runs"].items():
        for form, name in (("1", "whole"), ("8 tables", "blocks of 8, tables also")):
            yield NAMES[model], name, *(f"{forms[form][m]:.1f}" for m in ("none", "cdp", "sefl"))


def curves() -> list[tuple[str, list[int], list[float]]]:
    """For the plot: label, block sizes and perplexities."""
    figures = read_result("sefl-figure4")
    if not figures:
        return []
    lines = []
    for model, runs in figures["runs"].items():
        blocks = [block for block in BLOCKS if f"{block}" in runs]
        for text, ending in (("layers", ""), ("layers and tables", " tables")):
            forms = ["1", *(f"{block}{ending}" for block in blocks[1:])]
            values = [runs[form]["test_perplexity"] for form in forms]
            lines.append((f"{NAMES[model]}, {text}", blocks, values))
    return lines
