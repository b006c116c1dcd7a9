"""Figures for the rows of SEFL, of language models, in docs/papers.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scripts.reproduction.markdown import mean, seconds
from scripts.reproduction.results import Figures

BLOCKS: Final = ("4", "8", "16", "32")


def _tests(runs: Mapping[str, Figures]) -> list[float]:
    return [run["test_perplexity"] for run in runs.values()]


def _table1(records: Figures) -> Figures:
    """Perplexity by dropouts: as it is, and against that of no dropouts."""
    first = records["sefl-table1"]["runs"]
    every = [run for shares in first.values() for of in shares.values() for run in of.values()]
    ways = [
        set(ways.values()) for of in records["sefl-table1"]["same"].values() for ways in of.values()
    ]
    means = {m: {s: np.mean(_tests(runs)) for s, runs in of.items()} for m, of in first.items()}

    def change(model: str, share: str) -> str:
        return f"{100 * (means[model][share] / means[model]['0'] - 1):+.1f} %"

    return {
        "perplexity1": {
            model: {
                share: mean(_tests(runs), 1)
                + (f" ({change(model, share)})" if share != "0" else "")
                for share, runs in shares.items()
            }
            for model, shares in first.items()
        },
        "dropped": ", ".join(change(model, "0.25") for model in first),
        "points": ", ".join(f"{of['0.75'] - of['0']:+.1f}" for of in means.values()),
        "tenth": "; ".join(
            f"{model.partition('-')[0]} {mean(_tests(shares['0']), 1)}"
            for model, shares in first.items()
        ),
        "alike1": f"`plain`, `dense`, `fsl`, `sefl`: one model in {sum(len(w) == 1 for w in ways)} "
        f"of {len(ways)} rows",
        "sefl_exact": {
            "rounds": sum(run["exact_rounds"] for run in every),
            "of": sum(run["rounds"] for run in every),
        },
    }


def _by_form(block: str, texts: Mapping[str, str]) -> str:
    """Of blocks in the layers alone, of blocks in all matrices, and of whole matrices."""
    return f"{texts[block]} in layers, {texts[f'{block} tables']} in all, {texts['1']} whole"


def _figure4(records: Figures) -> Figures:
    """Perplexity by block, and the forms that improve on whole matrices."""
    tests = {
        model: {form: run["test_perplexity"] for form, run in forms.items()}
        for model, forms in records["sefl-figure4"]["runs"].items()
    }
    texts = {model: {f: f"{value:.1f}" for f, value in of.items()} for model, of in tests.items()}
    in_blocks = [(value, of["1"]) for of in tests.values() for f, value in of.items() if f != "1"]
    best = {m: min((f for f in of if f != "1"), key=of.__getitem__) for m, of in tests.items()}
    return {
        "blocks4": {
            model: {block: f"perplexity {_by_form(block, of)}" for block in BLOCKS}
            for model, of in texts.items()
        },
        "best4": {
            model: f"{_rise(tests[model], form)} (blocks of {form})" for model, form in best.items()
        },
        "rise4": {model: _rise(of, "32 tables") for model, of in tests.items()},
        "better4": f"{sum(value < whole for value, whole in in_blocks)} of {len(in_blocks)}",
        "learnt": texts["lstm-wikitext2"]["8"],
        "fewer4": "; ".join(
            f"{model.partition('-')[0]} "
            + ", ".join(
                f"{forms['1']['values'] / forms[f'{b} tables']['values']:.1f}" for b in BLOCKS
            )
            for model, forms in records["sefl-figure4"]["runs"].items()
        )
        + " times fewer values in blocks of 4, 8, 16, 32",
    }


def _rise(tests: Mapping[str, float], form: str) -> str:
    return f"{100 * (tests[form] / tests['1'] - 1):+.1f} %"


def _times(records: Figures) -> Figures:
    """Of figure 4: processor seconds of a round of 4 clients by block, without training."""
    found: dict[str, dict[str, str]] = {}
    for model, forms in records["sefl-figure4"]["costs"].items():
        own = {form: of["sefl"] for form, of in forms.items()}
        client, servers = (
            {form: seconds(of[f"{who}_seconds"]) for form, of in own.items()}
            for who in ("client", "server")
        )
        found[model] = {
            block: f"A client takes {_by_form(block, client)}. "
            f"Servers take {_by_form(block, servers)}"
            for block in BLOCKS
        }
        gain = {f: own["1"]["client_seconds"] / own[f]["client_seconds"] for f in own}
        fewer = own["1"]["values"] / own["32 tables"]["values"]
        found[model]["gain"] = f"{gain['32 tables']:.1f}x ({fewer:.1f} times fewer values)"
        found[model]["layers"] = f"{gain['32']:.1f}x"
    return {"times4": found}


def _papersize(records: Figures) -> Figures:
    forms = records["sefl-tablepapersize"]["forms"]
    whole = forms["1"]["client_seconds"]

    def times(form: str) -> str:
        own = forms[form]
        fewer = forms["1"]["values"] / own["values"]
        return f"{whole / own['client_seconds']:.1f}x ({fewer:.1f} times fewer values)"

    return {"papersize": {"gain": times("32 tables"), "layers": times("32")}}


def _figure3(records: Figures) -> Figures:
    runs = records["sefl-figure3"]["runs"]
    found: dict[str, str] = {}
    for model, forms in runs.items():
        pruned, whole = forms["8 tables"], forms["1"]
        loss = 100 * (pruned["sefl"] / whole["cdp"] - 1)
        found[model] = f"{pruned['sefl']:.1f} against {whole['cdp']:.1f} ({loss:+.1f} %)"
    found["whole"] = "; ".join(
        f"{model.partition('-')[0]} {forms['1']['sefl']:.1f} against {forms['1']['cdp']:.1f}"
        for model, forms in runs.items()
    )
    found["rise"] = "; ".join(
        f"{model.partition('-')[0]} "
        + ", ".join(
            f"{name} {forms[form]['none']:.1f} to {forms[form]['sefl']:.1f}"
            for form, name in (("1", "whole"), ("8 tables", "blocks"))
        )
        for model, forms in runs.items()
    )
    for model, forms in runs.items():
        pruned, whole = forms["8 tables"]["sefl"], forms["1"]["sefl"]
        found[f"{model} noisy"] = (
            f"{pruned:.1f} against {whole:.1f} ({100 * (pruned / whole - 1):+.1f} %)"
        )
    rho = 1 / (2 * records["sefl-figure3"]["noise"] ** 2)  # against a server: one draw counts
    return {"figure3": found, "rho3": f"{rho:,.0f}"}


GROUPS: Final = (_table1, _figure4, _times, _papersize, _figure3)
"""Functions of all records, each with names that rows may use."""
