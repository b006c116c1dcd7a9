"""The tables of docs/results/din.md and others.md: DIN's costs and AUC, and other papers' tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scripts.reproduction.markdown import seconds, size
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures
from scripts.reproduction.rivals import TARGETS, rounds_to

SOCKETS: Final = Path("docs") / "results" / "service-load.json"


@table("din", "what | paper | ours")
def _din(figures: Figures) -> list[tuple[str, str, str]]:
    printed, measured = figures["paper"], figures["round"]
    first, later, *_ = map(size, figures["session_upload_bytes"])
    wide, bare, narrow = (
        size(figures[f"upload_bytes_{kind}"]) for kind in ("l128", "l128_no_check", "l32_no_check")
    )
    client, servers = measured["client_seconds_without_training"], measured["both_servers_seconds"]
    scheme = f"{printed['comparator_mb']} MB (the scheme the paper compares with)"
    theirs = f"{printed['client_seconds']:g} s", f"2 x {printed['server_seconds']:g} s"
    both = f"both servers together, {measured['clients']} clients, l = 32, checks"
    return [
        ("upload, l = 128, no checks", f"{printed['upload_mb']} MB", bare),
        ("upload, l = 128, checks", "-", wide),
        ("upload, l = 32, no checks", "-", narrow),
        ("**upload, l = 32, checks and authenticated retrieval**", scheme, f"**{first}**"),
        ("the same in later rounds of a fixed-submodel session", "-", f"**{later}**"),
        ("download, rows fetched privately", "whole model", size(measured["download_bytes"])),
        ("client, without training, l = 32, checks", theirs[0], seconds(client)),
        (both, theirs[1], seconds(servers)),
    ]


def _read_sockets() -> Figures | None:
    text = SOCKETS.read_text(encoding="utf-8") if SOCKETS.exists() else "null"
    found: Figures | None = json.loads(text)
    return found


@table(
    "din-sockets",
    "clients | at a time | upload per client | download per client | clients per second | "
    "transport and storage, share of the servers' time | date",
    "{clients:,} | {at_once} | {upload_bytes_per_client:size} | {download_bytes_per_client:size} | "
    "{clients_per_second:.0f} | {transport_and_storage_share:.0%} | {date}",
    figures=_read_sockets,
    stamp=None,
)
def _sockets(figures: Figures) -> list[Figures]:
    return [figures]


@table(
    "din-auc",
    "aggregation | AUC, last three | upload a client and round | exact | final model",
    "{name} | {auc_last_three:.4f} | {upload_bytes:size} | {exact} | `{model}`",
)
def _aucs(figures: Figures) -> Iterator[Figures]:
    for name in ("plain", "dense", "fsl"):
        run = figures[name]
        exact = "-" if name == "plain" else f"{run['exact_rounds']} of {run['rounds']}"
        yield {**run, "name": name, "exact": exact, "model": run["model_sha256"][:16]}


@table(
    "baselines",
    "scheme | upload a client | download a client | client | servers together, {clients} clients",
)
def _schemes(figures: Figures) -> Iterator[tuple[str, ...]]:
    whole, ours = size(4 * figures["parameters"]), figures["torchfsl"]
    for name, text in (
        ("fedavg", "FedAvg, no protection"),
        ("dense_two_server", "dense two-server shares"),
        ("secagg_plus", "Flower 1.41 SecAgg+"),
    ):
        if (one := figures[name]) is None:
            yield text, "not run: flwr is absent", whole, "", ""
        else:
            spent = seconds(one["client_seconds"]), seconds(one["server_seconds"])
            yield text, size(one["upload_bytes"]), whole, *spent
    sent = size(ours["upload_bytes"]), size(ours["download_bytes"])
    client, servers = ours["client_seconds_without_training"], ours["both_servers_seconds"]
    yield "torchfsl, 419 rows per client", *sent, seconds(client), seconds(servers)


@table(
    "liars",
    "clients | rounds | AUC | AUC, mean of models | lies added up | exact rounds | "
    "up, a client and round",
    "{name} | {rounds} | {auc:.4f} | {mean_auc:.4f} | {added} | {exact_rounds} of {rounds} | {up}",
)
def _liars(figures: Figures) -> Iterator[Figures]:
    rows = {"no liars": figures["honest"], "the liars stay away": figures["without_liars"]}
    for factor, runs in figures["by_factor"].items():
        rows[f"times {factor}, no proofs"] = runs["off"]
        rows[f'times {factor}, `proofs = "norm"`'] = runs["on"]
    for name, run in rows.items():
        added = f"{run['lies_added']} of {run['lies']}" if run["lies"] else "-"
        up = "-" if run["upload_bytes"] < 1e5 else size(run["upload_bytes"])
        yield {**run, "name": name, "added": added, "up": up}


RIVALS: Final = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedsubavg": 'FedSubAvg (`server.mean = "trained"`)',
    "fedadam": "FedAdam",
    "preset": "`deepfm` as it is: a gradient a client, lazy Adam",
}


@table(
    "rivals",
    "algorithm | rates chosen | AUC 0.60 | AUC 0.65 | AUC 0.70 | AUC after {rounds} | "
    "validation AUC in {trial_rounds} rounds",
    command="rivals --data DATA",
)
def _rivals(figures: Figures) -> Iterator[tuple[Any, ...]]:
    for name, run in figures["algorithms"].items():
        curve, trials = run["curve"], run["validation_auc"].items()
        reached = [rounds_to(curve, at) or f"not in {figures['rounds']}" for at in TARGETS]
        tried = ", ".join(f"{what}: {f'{auc:.3f}' if auc else 'diverged'}" for what, auc in trials)
        yield RIVALS[name], run["chosen"], *reached, f"{curve[-1][1]:.3f}", tried or "-"


@table(
    "secemb",
    "data | items | rows a user | SecEmb, upload | ours, no checks | ours, checks | client | "
    "a server, a client",
    "{data} | {items:,} | {rows} | {published_upload_mb} MB | {bare[upload_bytes]:size} | "
    "{checked[upload_bytes]:size} | {checked[client_seconds]:seconds} | "
    "{checked[server_seconds]:seconds}",
)
def _catalogues(figures: Figures) -> list[Figures]:
    return list(figures["rows"])


WAYS: Final = {
    "dense": ("everything (dense shares)", "topk"),
    "topk": ("largest blocks, the rest kept (error feedback)", "topk"),
    "topk-dropped": ("largest blocks, the rest dropped", "topk"),
    "sample": ("`BlockSample`: drawn in secret", "drawn_in_secret"),
}
"""By way of choosing its name, and the noise that it needs."""


@table(
    "preamble",
    "sent | accuracy after {rounds} rounds | upload | noise",
    "{name} | {percent:.1f} % | {upload_bytes:size} | {noise:.2f}",
    command="preamble --data DATA",
)
def _ways(figures: Figures) -> Iterator[Figures]:
    for way, run in figures["ways"].items():
        name, noise = WAYS[way]
        percent = 100 * run["accuracy"]
        yield {**run, "name": name, "percent": percent, "noise": figures["noise"][noise]}
