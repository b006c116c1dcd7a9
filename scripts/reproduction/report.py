"""RESULTS.md, docs/systems.md and docs/averages.md: every table from the JSON files in results/, the paper's figures beside ours."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.reproduction import (
    accuracy_report,
    averages_report,
    cost_report,
    held_out_report,
    liars_report,
    paper,
    plots,
    privhfl_report,
    recommendation_report,
    rivals_report,
    sefl_report,
    sesa_report,
    systems_report,
    training_report,
)
from scripts.reproduction.cost_report import PARTS
from scripts.reproduction.markdown import missing, seconds, size, stamp, table
from scripts.reproduction.results import read_result

TARGET = Path("RESULTS.md")
SOCKETS = Path("docs") / "results" / "service-load.json"

OPENING = f"""# Results

The evaluations of four papers, run again with torchfsl, and what the papers do not have.

| system | who must not collude | on this page |
| --- | --- | --- |
| `fsl`: {paper.CREDIT}, section 7 | the two servers | [every table and figure](#table-2-which-technique-for-which-scenario), and 32-bit values, checks against malicious clients, private retrieval, error feedback |
| [`sesa`](docs/sesa.md) | the server and more than T of the clients | [clients of different sizes](#sesa-one-server-clients-of-different-sizes) |
| [`sefl`](docs/sefl.md) | the aggregator and the key holder | [language models in block-Hankel form](#sefl-language-models-in-block-hankel-form) |
| [`privhfl`](docs/privhfl.md) | the server and any client | [unlike models that learn from each other's answers](#privhfl-unlike-models-that-learn-from-each-others-answers) |

[docs/systems.md](docs/systems.md) compares them on one task. This page is made by
`scripts/reproduce report` from the JSON files in `results/`; the command below each table writes
them, and DATA there is a folder of data sets.

- The first paper's figures come from 64 cores at 2.5 GHz and 188 GB; ours from **2 cores** and
  23 GB, the machine named with each table.
- MB are 10^6 bytes, MiB 2^20. m is the number of positions of a model, k of those that a client
  sends, l the bits of a value.
- *Checks* are those against malicious clients; *dense shares* send every value, masked, to two
  servers.
"""


def write() -> None:
    """Write RESULTS.md and its plots."""
    plots.draw()
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")
    systems_report.write()
    averages_report.write()


def render() -> str:
    """The text of RESULTS.md."""
    sections = [
        OPENING,
        _conclusions(),
        _guide(),
        cost_report.scale_factors(),
        cost_report.bins(),
        cost_report.computation(),
        cost_report.communication(),
        cost_report.example(),
        cost_report.rates(),
        accuracy_report.accuracy(),
        held_out_report.trials(),
        training_report.mega_elements(),
        training_report.beyond(),
        training_report.statistics(),
        _din(),
        training_report.din_auc(),
        recommendation_report.section(),
        liars_report.section(),
        rivals_report.rounds(),
        rivals_report.secemb(),
        rivals_report.blocks(),
        _baselines(),
        sesa_report.section(),
        sefl_report.section(),
        privhfl_report.section(),
    ]
    return "\n".join(section.rstrip() + "\n" for section in sections if section)


def _conclusions() -> str:
    lines = ["## What it is good for, and where it is not", ""]
    rates, recommendation = read_result("rates"), read_result("din")
    if rates and recommendation:
        ours, din = rates["ours_break_even_percent"], recommendation["round"]
        dense = size(din["dense_two_server_upload_bytes"])
        lines += [
            "Two servers that do not collude learn the exact sum of all updates, and neither a "
            "client's values nor which positions it sent (SECURITY.md has the limits; not audited). "
            f"A recommendation model (DIN, 419 rows a client) costs a client "
            f"**{size(din['upload_bytes'])} up** instead of {dense}, and "
            f"{size(din['download_bytes'])} down instead of {size(din['dense_download_bytes'])}. "
            "What is saved is traffic, not servers' time, which is longer than for dense shares (the "
            "last table).",
            *(["", trained] if (trained := recommendation_report.opening()) else []),
            "",
            "A position that a client sends takes 1.3 to 1.8 bins, and a bin costs 129 bits a level of "
            "its tree, 256 bits for the checks, and the value itself. So **what decides is how many "
            "values one position carries**:",
            "",
            f"- Rows of 18 values at 32 bits (recommendation tables) beat a dense upload up to "
            f"{ours['m=2^20 tau=18 l=32 check']:.0f} % of the rows, checks included; rows or blocks "
            f"of 32 up to {ours['m=2^20 tau=32 l=32 check']:.0f} %.",
            f"- Single 32-bit scalars beat it only below {ours['m=2^20 tau=1 l=32 check']:.1f} % "
            f"({ours['m=2^20 tau=1 l=32 no check']:.1f} % without checks). Above that choose blocks "
            "(`BlockTopK`), or dense shares: the planner says so and refuses unless told otherwise.",
            "- The paper's 7.9 % holds for its 128-bit values, where a dense vector is four times "
            "as large as it need be.",
            "- A model of which a client must send every parameter in every round gains nothing: use "
            "dense shares. Sending the largest part of an update and keeping the rest for later pays "
            "below the limits above, at a loss of accuracy: small for MNIST and TREC, for CIFAR-10 at "
            "1 % of whole points at equal settings and rounds (one seed; Table 7 says more, with the "
            "runs after it).",
        ]
    else:
        lines.append(missing("rates") + missing("din"))
    lines += ["", "![Upload against compression](results/upload.png)"]
    return "\n".join(lines) + "\n"


def _guide() -> str:
    figures = read_result("table2")
    if not figures:
        return "## Table 2: which technique for which scenario\n\n" + missing("table2")
    rows = [
        (
            row["scenario"],
            row["paper"],
            f"`{row['torchfsl']}`" if "(docs" not in row["torchfsl"] else row["torchfsl"],
            size(row["upload_bytes"])
            + (f", then {size(row['later_upload_bytes'])}" if "later_upload_bytes" in row else ""),
            f"{row['leaves']:,}",
        )
        for row in figures["rows"]
    ]
    text = (
        "## Table 2: which technique for which scenario\n\n"
        f"At m = 2^20 values of 32 bits, 1 % of them sent, checks on; dense shares "
        f"{size(figures['dense_bytes'])}. Finding the union is not counted: it costs a client about "
        "one more upload of the basic protocol, once, so that it pays over several rounds with the "
        "same union; it saves the servers' work sooner (docs/psu.md).\n\n"
    )
    head = ("scenario", "paper", "torchfsl", "upload a round", "leaves a client and server")
    return text + table(head, rows) + "\n\n" + stamp(figures)


def _din() -> str:
    figures = read_result("din")
    title = "## Section 7.5: DIN at its published shape\n\n"
    if not figures:
        return title + missing("din")
    printed, measured = figures["paper"], figures["round"]
    first, *later = figures["session_upload_bytes"]
    rows = [
        ("upload, l = 128, no checks", f"{printed['upload_mb']} MB",
         size(figures["upload_bytes_l128_no_check"])),
        ("upload, l = 128, checks", "-", size(figures["upload_bytes_l128"])),
        ("upload, l = 32, no checks", "-", size(figures["upload_bytes_l32_no_check"])),
        ("**upload, l = 32, checks and authenticated retrieval**",
         f"{printed['comparator_mb']} MB (the scheme the paper compares with)", f"**{size(first)}**"),
        ("the same in later rounds of a fixed-submodel session", "-", f"**{size(later[0])}**"),
        ("download, rows fetched privately", "whole model", size(measured["download_bytes"])),
        ("client, without training, l = 32, checks", f"{printed['client_seconds']:g} s",
         seconds(measured["client_seconds_without_training"])),
        (f"both servers together, {measured['clients']} clients, l = 32, checks",
         f"2 x {printed['server_seconds']:g} s",
         seconds(measured["both_servers_seconds"])),
    ]  # fmt: skip
    sockets = json.loads(SOCKETS.read_text(encoding="utf-8")) if SOCKETS.exists() else None
    over_network = (
        f"Over real sockets (two server processes, mutual TLS, every report on disk before it is "
        f"acknowledged, {sockets['clients']:,} clients with at most 512 rows, "
        f"{sockets['at_once']} at a time, on the same 2 cores as the servers): "
        f"{size(sockets['upload_bytes_per_client'])} up and "
        f"{size(sockets['download_bytes_per_client'])} down a client, "
        f"{sockets['clients_per_second']:.0f} clients/s; transport and storage take "
        f"{100 * sockets['transport_and_storage_share']:.0f} % of the servers' processor time. "
        f"`python -m scripts.bench.service`, {sockets['date']} (docs/service-results.md).\n\n"
        if sockets
        else ""
    )
    return (
        title
        + f"{figures['parameters']:,} parameters, 98 % of them embedding; a client fetches and "
        "trains 419 rows (301 goods, 117 categories, itself). The dense part is included. Retrieval "
        "is part of every figure of ours; the paper's leave it out.\n\n"
        + table(("what", "paper", "ours"), rows)
        + f"\n\nPeak memory of the process with both servers and all clients: "
        f"{size(measured['peak_memory_bytes'])}.\n\n" + over_network + stamp(figures)
    )


def _baselines() -> str:
    figures = read_result("baselines")
    title = "## Others on the same model\n\n"
    if not figures:
        return title + missing("baselines")
    names = {
        "fedavg": "FedAvg, no protection",
        "dense_two_server": "dense two-server shares",
        "secagg_plus": "Flower 1.41 SecAgg+",
    }
    whole = size(4 * figures["parameters"])
    rows = [
        (text, size(f["upload_bytes"]), whole, *(seconds(f[f"{who}_seconds"]) for who in PARTS[:2]))
        if (f := figures[name])
        else (text, "not run: flwr is absent", whole, "", "")
        for name, text in names.items()
    ]
    ours = figures["torchfsl"]
    rows.append(
        (
            "torchfsl, 419 rows a client",
            size(ours["upload_bytes"]),
            size(ours["download_bytes"]),
            seconds(ours["client_seconds_without_training"]),
            seconds(ours["both_servers_seconds"]),
        )
    )
    head = ("scheme", "upload a client", "download a client", "client",
            f"servers together, {figures['clients']} clients")  # fmt: skip
    return (
        title
        + f"A round of {figures['clients']} clients on DIN's {figures['parameters']:,} parameters. "
        "The first three send every parameter; SecAgg+ runs Flower's own client and server code "
        "with 5 shares, its messages counted as Flower serialises them (8 bytes a value). It needs one "
        "server; the two-server schemes need two that do not collude. torchfsl's servers check every "
        "client and answer its retrieval in this time; the others do neither.\n\n"
        + table(head, rows)
        + "\n\n"
        + stamp(figures)
    )
