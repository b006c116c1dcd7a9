"""The section of RESULTS.md on one server and clients of different widths."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.generate.isolation_table import isolated
from scripts.reproduction.markdown import missing, seconds, size, stamp, table
from scripts.reproduction.results import read_result
from scripts.reproduction.sesa import CHOICES, COHORT, DROPOUTS, RATE, SCALED_RATE
from training.sections import Sesa

TITLE = "## SESA: one server, clients of different sizes\n\n"
SHOWN = (20, 40, 60)
"""Rounds of the table of accuracy."""

_CHOICES = {
    "full": "all clients train everything",
    "random": "**SESA**: random shards, divided by the cohort",
    "random, scaled": "the same, activations scaled by 1 / width",
    "rolling": "FedRolex: a window of units that moves on by one, scaled, divided by owners",
    "static": "HeteroFL: always the first shards, scaled, divided by owners",
}
_SCHEMES = {
    "plain": ("no protection", "1"),
    "dense": ("dense shares", "2"),
    "fsl": ("`fsl`, one plan for all widths", "2"),
    "sesa": ("`sesa`", "1"),
    "secagg_plus": ("Flower 1.41 SecAgg+, 5 shares", "1"),
}


def section() -> str:
    """Claims, costs, accuracy, and for whom it is."""
    figures = read_result("sesa")
    if not figures:
        return TITLE + missing("sesa")
    parts = [
        TITLE + _claims(figures),
        "### What a round costs\n\n" + _costs(figures),
        "### Accuracy by choice of shards\n\n" + _accuracy(figures),
        "### For whom it is the better choice, and for whom not\n\n" + _verdict(figures),
        stamp(figures),
    ]
    return "\n".join(parts)


def _claims(figures: dict[str, Any]) -> str:
    mlp = figures["costs"]["MLP"]
    own = mlp["sesa"]["bytes"]["1"]
    papers = 4 * mlp["clients"] * mlp["parameters"]
    up = own["phases"]["masked"] + own["phases"]["answer"]
    rows = [
        (
            "a server and T = N / 2 clients learn nothing but sums",
            "holds by itself, but a sum may have one honest term. Expected submodels a round of that kind, "
            "N / 10 dropouts: "
            + ", ".join(
                f"{isolated(clients, clients // 2, submodels):.2g} with N = {clients}, K = {submodels}"
                for clients, submodels in ((100, 4), (100, 16), (40, 4), (20, 4))
            )
            + f". Plans and rounds above {Sesa().max_isolation:g} are refused (docs/sesa.md)",
        ),
        (
            "information-theoretic",
            "the code alone is; masks and seeded shares come from AES-128, and the one server carries "
            "everybody's shares, sealed with X25519 and ChaCha20-Poly1305",
        ),
        ("bears D <= N - (K + T) dropouts", "holds, exact; isolation often allows fewer"),
        (
            "uploads of K_i d / K online",
            f"holds: {size(up)} for a full client of {mlp['parameters']:,} parameters (masked update "
            "and answer)",
        ),
        (
            "N K_i d / K offline",
            f"{size(papers)} for a full client; merged and seeded shares make it "
            f"{size(own['phases']['shares'])} for every width",
        ),
        (
            "(downloads are not in the analysis)",
            f"every client, narrow ones too, receives all masked updates: "
            f"{size(own['phases']['survivors'])}",
        ),
        ("accuracy comparable to full clients and to FedRolex", _against(figures, "random", 60)),
        ("converges faster than FedRolex", _against(figures, "random", 20)),
    ]
    return (
        'Sami and Guler, "Secure Submodel Aggregation for Resource-Aware Federated Learning", has one '
        "figure, of accuracy, and prints no seconds, bytes, rates or rounds. What it claims, and "
        "what is found here:\n\n" + table(("the paper", "here"), rows) + "\n"
    )


def _against(figures: dict[str, Any], name: str, at: int) -> str:
    shown = {one: _at(figures, one, at) for one in (name, "rolling", "full")}
    if any(values is None for values in shown.values()):
        return f"no figures of round {at}"
    words = {"rolling": "FedRolex", "full": "full clients", name: "random shards"}
    return f"after {at} rounds " + ", ".join(
        f"{words[one]} {_mean(values)} %" for one, values in shown.items() if values
    )


def _costs(figures: dict[str, Any]) -> str:
    parts = []
    for name, one in figures["costs"].items():
        clients = one["clients"]
        widths = list(one["sesa"]["bytes"])
        rows = []
        for scheme, (text, servers) in _SCHEMES.items():
            found = one[scheme]
            if found is None:
                rows.append((text, servers, "not run: flwr is absent", "", "", ""))
                continue
            if scheme == "secagg_plus":
                share = found["server_seconds"] / (
                    found["server_seconds"] + clients * found["client_seconds"]
                )
                up, down = size(found["upload_bytes"]), size(4 * one["parameters"])
            else:
                share = found["server_share"]
                up, down = (
                    _by_width([found["bytes"][w][way] for w in widths])
                    for way in ("upload", "download")
                )
            spent = found["cpu_seconds"]
            rows.append((text, servers, up, down, seconds(spent * (1 - share) / clients),
                         seconds(spent * share)))  # fmt: skip
        head = ("scheme", "servers", f"upload, widths {' / '.join(widths)}", "download",
                "processor time a client", "of all servers")  # fmt: skip
        own = one["sesa"]["bytes"]
        phases = [
            (kind, *(size(own[width]["phases"][kind]) for width in widths))
            for kind in own[widths[0]]["phases"]
        ]
        parts.append(
            f"{name}, {one['parameters']:,} parameters, {clients} clients in thirds, "
            f"{one['sesa']['collusion']} of whom may collude under `sesa`, which is planned for "
            f"{one['planned_dropouts']} dropouts; none drops out here:\n\n"
            + table(head, rows)
            + "\n\nOf `sesa`, by message:\n\n"
            + table(("message", *(f"width {width}" for width in widths)), phases)
            + "\n"
        )
    return (
        "Random updates through the same messages as on a network, nobody trains; every sum equals "
        "the plaintext's. Seconds are of a processor that others use as well, split between clients and "
        "servers by the time each of them took. SecAgg+ sends 8 bytes a value, checks nothing, and its "
        "five shares bear four colluding neighbours at most.\n\n" + "\n".join(parts)
    )


def _by_width(values: list[float]) -> str:
    shown = [size(value) for value in values]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _at(figures: dict[str, Any], name: str, round_number: int) -> list[float] | None:
    """Percent after so many rounds, of every seed; None where one has not got there."""
    curves = [dict(run["curve"]) for run in figures["accuracy"][name].values()]
    if not curves or any(round_number not in curve for curve in curves):
        return None
    return [100 * curve[round_number] for curve in curves]


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def _accuracy(figures: dict[str, Any]) -> str:
    rows = []
    for name in CHOICES:
        found = [_at(figures, name, at) for at in SHOWN]
        rows.append((_CHOICES[name], *("-" if one is None else _mean(one) for one in found)))
    seeds = len(figures["accuracy"]["random"])
    return (
        f"MNIST, the MLP with 200 hidden units, 100 clients with two labels each, {COHORT} of them a "
        f"round, {100 * DROPOUTS:.0f} % of these drop out, one local epoch of batches of 50, summed in "
        f"the clear. Rate {RATE:g}; {SCALED_RATE:g} with scaled activations, which are up to four times as "
        f"large and train badly at {RATE:g}. Neither rate was searched for. Test accuracy in per cent, mean "
        f"± standard deviation of {seeds} seeds, after so many rounds:\n\n"
        + table(("", *(f"{at}" for at in SHOWN)), rows)
        + "\n\n![Accuracy by choice of shards](results/sesa.png)\n"
    )


def _verdict(figures: dict[str, Any]) -> str:
    mlp = figures["costs"]["MLP"]
    narrow, wide = (mlp["sesa"]["bytes"][width] for width in ("0.25", "1"))
    dense = mlp["dense"]["bytes"]["1"]["upload"]
    return "\n".join(
        [
            "- **For whoever has one server only**, clients of different sizes, and wants to hide from that "
            "server and T clients without trust in a second party. It has to be many clients "
            "of whom some train everything: two of these more than may collude and drop out "
            "are enough for certain, and large cohorts need fewer.",
            "- **For weak clients in training**, not on the network: a quarter-width client computes a quarter "
            f"of each layer, but it uploads {size(narrow['upload'])} (a full one {size(wide['upload'])}, "
            f"dense shares to two servers {size(dense)}) and downloads {size(narrow['download'])}.",
            "- **Not where two servers that do not collude can be had**: `fsl`, or dense shares, move fewer "
            "bytes in every column, need no other client and bear any dropouts; `fsl` notices malformed "
            "reports, too. A model all of whose parameters are trained gains nothing from trees; dense shares are enough.",
            "- **Not for traffic at one server**: SecAgg+ on updates filled up with zeros hides the shards as "
            "well, whatever the width, for the model's size down and once or twice as much up.",
            "- **Not against a server that misbehaves**, against clients that do, or against what sums "
            "themselves tell: SECURITY.md and docs/sesa.md.",
            "",
        ]
    )
