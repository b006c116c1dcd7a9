"""The section of RESULTS.md on SEFL's language models."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.reproduction.markdown import missing, seconds, size, stamp, table
from scripts.reproduction.results import read_result
from scripts.reproduction.sefl import BLOCKS, MODELS, VALID

TITLE = "## SEFL: language models in block-Hankel form\n\n"
NAMES = dict(zip(MODELS, ("LSTM", "Transformer"), strict=True))
PAPER_TABLE1 = {
    MODELS[0]: {"0": 177.41, "0.25": 178.45, "0.5": 187.64, "0.75": 194.82},
    MODELS[1]: {"0": 263.78, "0.25": 279.81, "0.5": 301.04, "0.75": 310.12},
}
PAPER_TIMES, PAPER_BETTER = 13.7, {MODELS[0]: 19.3, MODELS[1]: 12.8}
"""Figure 4: up to so many times less time, and up to so many per cent less perplexity."""


def section() -> str:
    """What is compared, dropouts, block sizes."""
    return "\n".join([TITLE + _opening(), _dropouts(), _blocks(), _parties()])


def _opening() -> str:
    return (
        'Deng, Wang, Meng et al., "A Secure and Efficient Federated Learning Framework for NLP", has two '
        "tables of figures on WikiText-2. **Its perplexities and ours cannot be compared**: it names "
        "neither clients, rounds, learning rates, the LSTM's width, clipping nor noise; it trains on 8 "
        "GPUs with all 33,278 words and width 200, and adds noise. Ours are 8,192 words, width 64, a tied "
        "decoder, 100 clients with a stretch of the text each, few rounds of 20 steps (two cores), no noise. "
        "What can be compared is how much dropouts and block sizes change. Perplexities are of the whole "
        "test text, which no choice was made by, in windows of 32 words. *Nothing learnt* stands where that of "
        "the validation text is not 5 % below the perplexity of the frequencies of single words: such runs need "
        "more rounds (`--rounds`; they go on where they ended), and how they change says little.\n"
    )


def _dropouts() -> str:
    title = "### Table 1: clients that drop out\n\n"
    figures = read_result("sefl-table1")
    if not figures:
        return title + missing("sefl --table 1")
    rows = []
    for model, shares in figures["runs"].items():
        whole = _tests(shares["0"])
        for share, runs in shares.items():
            ours, paper = _tests(runs), PAPER_TABLE1[model]
            rows.append(
                (
                    NAMES[model],
                    f"{100 * float(share):.0f} %",
                    f"{paper[share]:.2f}",
                    _change(paper[share], paper["0"], share),
                    _mean(ours) + _note(list(runs.values())),
                    _change(np.mean(ours), np.mean(whole), share),
                )
            )
    any_run = _runs(figures)[0]
    all_exact = all(run["exact_rounds"] == run["rounds"] for run in _runs(figures))
    head = ("model", "dropouts", "paper", "", "ours", "")
    return (
        title + f"Layers in blocks of {figures['block']} (the paper gives no size), whole tables, "
        f"{any_run['rounds']} rounds of 8 clients, of whom the share never submits; mean ± standard "
        f"deviation of {len(next(iter(figures['runs'][MODELS[0]].values())))} seeds. The frequencies of "
        f"single words alone have perplexity {any_run['unigram_perplexity']:.1f} on the validation text's first "
        f"{VALID:,} words. "
        f"Summed by SEFL; every round exact over those who submitted: {'yes' if all_exact else 'NO'}. "
        f"{_same(figures)}\n\n" + table(head, rows) + "\n\n" + stamp(figures) + _where(figures)
    )


def _where(figures: dict[str, Any]) -> str:
    """Machines and dates of runs that were not all made with the table."""
    found = sorted({f"{r['machine']}, {r['date']}" for r in _runs(figures) if "machine" in r})
    return f"\nRuns: {'; '.join(found)}.\n" if len(found) > 1 else ""


def _same(figures: dict[str, Any]) -> str:
    found = [one for shares in figures["same"].values() for one in shares.values()]
    names = ", ".join(f"`{name}`" for name in found[0])
    runs = _runs(figures)
    equal = sum(run["plain_sha256"] == run["model_sha256"] for run in runs)
    return (
        f"{equal} of the {len(runs)} runs were made in the clear, too, on the same machine, and ended with "
        f"the same `model_sha256`. The first round of each row was run under {names}, with one "
        "`model_sha256`, too."
    )


def _blocks() -> str:
    title = "### Figure 4: block sizes\n\n"
    figures = read_result("sefl-figure4")
    if not figures:
        return title + missing("sefl --figure 4")
    some = _runs(figures)[0]
    parts = [
        f"A matrix in blocks of b has 2b - 1 values for every b². {some['rounds']} rounds of 4 clients, "
        f"seed {figures['seed']}, one run each. The paper says that its scheme takes up to {PAPER_TIMES} times "
        f"less time, and that perplexity becomes better by up to {PAPER_BETTER[MODELS[0]]} % (LSTM) and "
        f"{PAPER_BETTER[MODELS[1]]} % (Transformer), for which it offers that fewer values take up less noise. "
        "Here is no noise. At its own sizes 13,987,678 values of the LSTM become 997,858, 14.0 times fewer, "
        "only if both tables are in blocks, too; with blocks in the layers alone 1.04 times. \n"
    ]
    for model, runs in figures["runs"].items():
        costs = figures["costs"][model]
        whole = runs["1"]
        names = list(costs["1"])
        rows = []
        for form, run in runs.items():
            rows.append(
                (
                    f"{form.split()[0]}" if form != "1" else "whole matrices",
                    "layers and tables" if "tables" in form else "layers" if form != "1" else "",
                    f"{run['values']:,}",
                    f"{whole['values'] / run['values']:.2f}",
                    f"{run['test_perplexity']:.1f}" + _note([run]),
                    _change(run["test_perplexity"], whole["test_perplexity"], form, "1"),
                    *(
                        f"{size(one['upload_bytes'])}, {seconds(one['client_seconds'])}, "
                        f"{seconds(one['server_seconds'])}"
                        for one in costs[form].values()
                    ),
                )
            )
        head = ("blocks of", "in", "values", "times fewer", "perplexity", "", *names)
        parts.append(f"{NAMES[model]}:\n\n" + table(head, rows) + "\n")
    parts.append(
        "Under each aggregation: upload a client, processor seconds of a client and of all servers together "
        f"for {costs['1'][names[0]]['clients']} clients, without training; sums checked. Under `fsl` "
        "the planner sends all of these models as dense shares.\n"
    )
    parts.append(_untied(figures))
    parts.append(
        "![Perplexity by block size](results/sefl.png)\n\n" + stamp(figures) + _where(figures)
    )
    return title + "\n".join(parts)


MALICIOUS = {
    "plain": "reads everything",
    "dense": "either server: spoils the sum",
    "fsl": "either server: spoils the sum; clients are confined to one leaf a bin",
    "sefl": "aggregator: has one client's update opened, or the secret key; key holder: spoils the sum",
    "paillier": "as `sefl`",
}


def _parties() -> str:
    title = "### Ways to sum one model\n\n"
    figures = read_result("sefl-tablecosts")
    if not figures:
        return title + missing("sefl --table costs")
    found = dict(figures["rows"])
    if figures["paillier"]:
        found["paillier"] = figures["paillier"]
    rows = []
    for name, one in found.items():
        if name == "paillier":
            parts = [one["aggregator_seconds"], one["key_holder_seconds"]]
        elif "key_holder_seconds" in one:
            parts = [one["server_seconds"] - one["key_holder_seconds"], one["key_holder_seconds"]]
        else:
            parts = [one["server_seconds"]]
        rows.append(
            (
                f"`{name}`" if name != "paillier" else "Paillier, 3,072 bits",
                size(one["upload_bytes"]),
                seconds(one["client_seconds"]),
                " + ".join(seconds(part) for part in parts),
                MALICIOUS[name],
            )
        )
    some = found["plain"]
    head = ("", "upload a client", "client", "servers", "a malicious server")
    return (
        title
        + f"The LSTM with an untied decoder, {some['values']:,} values, {some['clients']} clients, processor "
        "seconds without training, sums checked. Servers: both together, or aggregator + key holder. The key "
        "holder's work does not grow with the clients. Paillier's figures follow from rates measured on few "
        "numbers, of 33 bits packed side by side.\n\n" + table(head, rows) + "\n\n" + stamp(figures)
    )


def _untied(figures: dict[str, Any]) -> str:
    untied = figures["untied"]
    costs, tied = untied["costs"], figures["costs"][MODELS[0]]["1"]
    return (
        f"With an untied decoder, {100 * untied['rows']:g} % of the input table's rows a client and the rest of "
        f"the LSTM whole, `fsl` uploads {size(costs['fsl']['upload_bytes'])} instead of "
        f"{size(costs['dense']['upload_bytes'])}, and hides which words a client has; a tied decoder, "
        f"whose table moves as a whole, has {size(tied['dense']['upload_bytes'])} to send in the first place.\n"
    )


def _runs(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """All runs of a file, however deep."""
    found = []
    stack = [figures["runs"]]
    while stack:
        for value in stack.pop().values():
            if "test_perplexity" in value:
                found.append(value)
            else:
                stack.append(value)
    return found


def _note(runs: list[dict[str, Any]]) -> str:
    """Says so where models know hardly more than how frequent words are."""
    shares = [run["curve"][-1][1] / run["unigram_perplexity"] for run in runs]
    return " (nothing learnt)" if np.mean(shares) > 0.95 else ""


def _tests(runs: dict[str, Any]) -> list[float]:
    return [run["test_perplexity"] for run in runs.values()]


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def _change(value: float, whole: float, name: str, none: str = "0") -> str:
    return "" if name == none else f"{100 * (value / whole - 1):+.1f} %"


def curves() -> list[tuple[str, list[int], list[float]]]:
    """For the plot: label, block sizes and perplexities."""
    figures = read_result("sefl-figure4")
    if not figures:
        return []
    lines = []
    for model, runs in figures["runs"].items():
        for text, ending in (("layers", ""), ("layers and tables", " tables")):
            blocks = [block for block in BLOCKS if f"{block}" in runs]
            forms = ["1", *(f"{block}{ending}" for block in blocks[1:])]
            values = [runs[form]["test_perplexity"] for form in forms]
            lines.append((f"{NAMES[model]}, {text}", blocks, values))
    return lines
