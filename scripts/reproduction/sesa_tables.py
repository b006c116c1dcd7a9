"""The tables of docs/results/sesa.md: one server and clients of different widths."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from scripts.reproduction.markdown import mean, seconds, size
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures
from scripts.reproduction.sesa import CHOICES

CHOICE_WORDS: Final = {
    "full": "all clients train everything",
    "random": "**SESA**: random shards, divided by the cohort",
    "random, scaled": "the same, activations scaled by 1 / width",
    "rolling": "FedRolex: a window of units that moves on by one, scaled, divided by owners",
    "static": "HeteroFL: always the first shards, scaled, divided by owners",
}
SCHEMES: Final = {
    "plain": ("no protection", "1"),
    "dense": ("dense shares", "2"),
    "fsl": ("`fsl`, one plan for all widths", "2"),
    "sesa": ("`sesa`", "1"),
    "secagg_plus": ("Flower 1.41 SecAgg+, 5 shares", "1"),
}


def _at(figures: Figures, name: str, rounds: int) -> list[float]:
    """Percent after so many rounds, of every seed; empty if one has not got there."""
    curves = [dict(run["curve"]) for run in figures["accuracy"][name].values()]
    if any(rounds not in curve for curve in curves):
        return []
    return [100 * curve[rounds] for curve in curves]


@table("sesa-accuracy", " | 20 | 40 | 60", figures="sesa")
def _accuracy(figures: Figures) -> Iterator[tuple[str, ...]]:
    for name in CHOICES:
        found = [_at(figures, name, rounds) for rounds in (20, 40, 60)]
        yield CHOICE_WORDS[name], *(mean(values, 1) if values else "-" for values in found)


def _schemes(shape: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    """Bytes by width and processor time of every way to sum one shape."""
    costs = figures["costs"][shape]
    clients = costs["clients"]
    for name, words in SCHEMES.items():
        if (own := costs[name]) is None:
            yield *words, "not run: flwr is absent", "", "", ""
            continue
        if name == "secagg_plus":
            servers = own["server_seconds"]
            share = servers / (servers + clients * own["client_seconds"])
            sent = [size(own["upload_bytes"]), size(4 * costs["parameters"])]
        else:
            share, widths = own["server_share"], own["bytes"].values()
            sent = [_by_width([width[way] for width in widths]) for way in ("upload", "download")]
        spent = own["cpu_seconds"]
        yield *words, *sent, seconds(spent * (1 - share) / clients), seconds(spent * share)


def _by_width(values: list[float]) -> str:
    shown = [size(value) for value in values]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _messages(shape: str, figures: Figures) -> Iterator[list[str]]:
    """Bytes of `sesa` by message and width."""
    phases = [width["phases"] for width in figures["costs"][shape]["sesa"]["bytes"].values()]
    for name in phases[0]:
        yield [name, *(size(of_width[name]) for of_width in phases)]


for _shape in ("MLP", "MnistCNN"):
    table(
        f"sesa-{_shape}",
        "scheme | servers | upload, widths 1 / 0.5 / 0.25 | download | processor time a client | "
        "of all servers",
        figures="sesa",
        stamp=None,
    )(functools.partial(_schemes, _shape))
    table(
        f"sesa-{_shape}-messages",
        "message | width 1 | width 0.5 | width 0.25",
        figures="sesa",
        stamp=None,
    )(functools.partial(_messages, _shape))


@table("sesa-speed", " | rate | 20 | 40 | 80 | 160 | rounds to 90 %")
def _speed(figures: Figures) -> Iterator[tuple[str, ...]]:
    """Each choice at its best rate."""
    for name, runs in figures["accuracy"].items():
        curves = [dict(run["curve"]) for run in runs.values()]
        reached = [next((n for n, v in curve.items() if v >= 0.9), None) for curve in curves]
        at = [mean([100 * curve[n] for curve in curves], 1) for n in (20, 40, 80, 160)]
        words = ", ".join("never" if n is None else str(n) for n in reached)
        yield CHOICE_WORDS[name], f"{figures['rates'][name]:g}", *at, words


@table("sesa-attack", "clients | plan | samples of a lone submodel read | of single units")
def _attack(figures: Figures) -> Iterator[tuple[str, ...]]:
    for name, (wide, narrow) in figures["pairs"].items():
        yield f"2, {name}", "refused", f"{wide} and {narrow} of {figures['trials']} pairs", "-"
    for clients, found in figures["cohorts"].items():
        yield (
            clients,
            "refused, limit lifted" if found["refused"] else "accepted",
            f"{found['submodels']} of {figures['rounds']} rounds",
            f"{found['units']} of {figures['rounds']} rounds",
        )


@table("sesa-writers", "{set} | {rounds} rounds", figures="sesa-writers")
def _writers(figures: Figures) -> Iterator[tuple[str, str]]:
    for name, runs in figures["accuracy"].items():
        last = [100 * run["curve"][-1][1] for run in runs.values()]
        yield CHOICE_WORDS[name], f"{mean(last, 1)} %"
