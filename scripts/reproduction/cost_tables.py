"""The tables of docs/results/costs.md: bytes, seconds and bins of FSL's paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scripts.reproduction.communication import MIB
from scripts.reproduction.markdown import seconds, size
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures


@table(
    "table2",
    "scenario | paper | torchfsl | upload a round | leaves a client and server",
    "{scenario} | {paper} | {own} | {upload} | {leaves:,}",
)
def _scenarios(figures: Figures) -> Iterator[Figures]:
    for row in figures["rows"]:
        upload, later = size(row["upload_bytes"]), row.get("later_upload_bytes")
        upload += f", then {size(later)}" if later else ""
        own = row["torchfsl"]
        yield {**row, "own": own if "(docs" in own else f"`{own}`", "upload": upload}


@table("table3", "m | paper | ours, 1 % | ours, 10 % | ours, 30 %", stamp=None)
def _factors(figures: Figures) -> Iterator[tuple[Any, ...]]:
    for row in figures["factors"]:
        ours = (
            "full-domain trees"
            if cell["bins_an_item"] is None
            else f"{cell['bins_an_item']:.3f}" + f", stash {cell['stash']}" * bool(cell["stash"])
            for cell in row["ours"].values()
        )
        yield (f"2^{row['log2_m']}", row["paper"], *ours)


@table(
    "table3-failures",
    "m, k/m | k | bins | failures | rate | at least",
    "2^{log2_m}, {percent} % | {k} | {bins} | {failures:,} of {trials:,} | {rate} | 2^{twins:.1f}",
    figures="table3",
)
def _failures(figures: Figures) -> Iterator[Figures]:
    for cell in figures["paper_failures"]:
        rate = "none seen" if cell["log2_rate"] is None else f"2^{cell['log2_rate']:.1f}"
        yield {**cell, "rate": rate, "twins": twins(cell["k"], cell["bins"])}


def twins(k: int, bins: int) -> float:
    """Log2 of a lower bound on two of k positions with one bin in all six hashes: Bonferroni's."""
    pairs = math.comb(k, 2) * bins**-5.0
    of_three_positions = 3 * math.comb(k, 3) * bins**-8.0
    return math.log2(pairs - pairs**2 / 2 - of_three_positions)


@table("table4", "k/m | 2^10 | 2^15 | 2^20 | 2^25")
def _bins(figures: Figures) -> Iterator[list[str]]:
    cells = sorted(figures["cells"], key=lambda c: (c["percent"], c["log2_m"]))
    for percent in dict.fromkeys(cell["percent"] for cell in cells):
        row = [f"{percent} %"]
        for cell in (c for c in cells if c["percent"] == percent):
            ours = cell["ours"] if cell["mechanism"] == "cuckoo" else "no table"
            row.append(f"{cell['paper']} / {cell['simple_hashing']} / **{ours}**")
        yield row


@table(
    "table5",
    "m, k/m | paper, keys | client | paper / ours | paper, evaluation + aggregation | server | "
    "paper / ours | opening | client, server at l = 32 with checks",
    "2^{log2_m}, {percent} % | {paper_seconds[gen]:seconds} | {l128[client_seconds]:seconds} | "
    "{client_gain:.0f}x | {both:seconds} | {l128[server_seconds]:seconds} | {server_gain} | "
    "{l128[round_seconds]:seconds} | "
    "{l32_check[client_seconds]:seconds}, {l32_check[server_seconds]:seconds}",
    stamp=None,
)
def _computation(figures: Figures) -> Iterator[Figures]:
    for cell in figures["cells"]:
        printed, ours = cell["paper_seconds"], cell["l128"]
        both = printed["eval"] + printed["aggregation"]
        gain = f"{both / ours['server_seconds']:.0f}x"
        yield {
            **cell,
            "both": both,
            "client_gain": printed["gen"] / ours["client_seconds"],
            "server_gain": "not compared" if cell["not_compared"] else gain,
        }


@table(
    "figure7",
    "k/m | 10 % | 20 % | 30 % | 40 % | 50 % | 60 % | 70 % | 80 % | 90 % | 100 %",
    figures="table5",
    stamp=None,
)
def _figure7(figures: Figures) -> Iterator[list[str]]:
    for party in ("client", "server"):
        yield [party, *(seconds(p[f"{party}_seconds"]) for p in figures["figure7_2_15"])]


@table(
    "table5-large",
    "l | client | server | opening",
    "{ring_bits} | {client_seconds:seconds} | {server_seconds:seconds} | {round_seconds:seconds}",
    figures="table5",
)
def _largest(figures: Figures) -> list[Figures]:
    return list(figures["2_25_10_percent"])


@table(
    "table6",
    "m, k/m | paper (its formula) | l = 128 | against the formula | with checks | dense | "
    "l = 32 | with checks | dense",
    "2^{log2_m}, {percent} % | {paper_mib} ({paper_formula_mib:.4f}) | {mib[l128_bytes]:.4f} | "
    "{above:+.1f} % | {mib[l128_check_bytes]:.4f} | {mib[dense_l128_bytes]:.3f} | "
    "{mib[l32_bytes]:.4f} | {mib[l32_check_bytes]:.4f} | {mib[dense_l32_bytes]:.4f}",
)
def _uploads(figures: Figures) -> Iterator[Figures]:
    for cell in figures["cells"]:
        mib = {name: value / MIB for name, value in cell.items() if name.endswith("_bytes")}
        above = 100 * (mib["l128_bytes"] / cell["paper_formula_mib"] - 1)
        yield {**cell, "mib": mib, "above": above}


@table("example", "upload | figure", figures="mnist")
def _example(figures: Figures) -> list[tuple[str, str]]:
    upload = figures["upload_bytes"]
    return [
        ("dense, l = 128", f"{figures['dense_l128_mebibits']:.0f} Mibit"),
        ("the paper's formula", f"{figures['paper_formula_mebibits']:.1f} Mibit"),
        ("ours, l = 128", f"{figures['l128_mebibits']:.1f} Mibit, {size(upload['l128'])}"),
        ("ours, l = 32 with checks", size(upload["l32_check"])),
        ("ours, l = 32 with checks, blocks of 32", size(figures["blocks_of_32_l32_check_bytes"])),
        ("dense shares, l = 32", size(4 * figures["weights"])),
        ("time of the client, l = 128", seconds(figures["client_seconds"])),
    ]


@table(
    "rates-paper",
    "protocol | upload over dense | cheaper than dense for",
    "{name} | {rate_over_c:.2f} c | c < {break_even_percent:.1f} %",
    figures="rates",
    stamp=None,
)
def _protocols(figures: Figures) -> list[Figures]:
    names = {"basic": "basic", "psu_theta_5": "with PSU (9 to 5 levels)", "mega_18": "rows of 18"}
    return [{"name": name, **figures["paper"][key]} for key, name in names.items()]


@table("rates", "values per position | l = 32 | with checks | l = 128 | with checks")
def _break_even(figures: Figures) -> Iterator[list[str]]:
    ours = figures["ours_break_even_percent"]
    kinds = [f"l={bits} {check}" for bits in (32, 128) for check in ("no check", "check")]
    for tau in (1, 18, 32):
        yield [f"{tau}", *(f"{ours[f'm=2^20 tau={tau} {kind}']:.1f} %" for kind in kinds)]
