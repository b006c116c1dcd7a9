"""The sections of RESULTS.md about costs: tables 3 to 6, the introduction's example, section 6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scripts.reproduction import paper
from scripts.reproduction.communication import MIB
from scripts.reproduction.markdown import missing, seconds, size, stamp, table, weights
from scripts.reproduction.results import read_result

PARTS = ("client", "server", "round")


Figures = dict[str, Any]


def scale_factors() -> str:
    """Table 3."""
    figures = read_result("table3")
    title = "## Table 3: bins an item\n\n"
    if not figures:
        return title + missing("table3")
    rows = []
    for row in figures["factors"]:
        ours = [
            "full-domain trees"
            if cell["bins_an_item"] is None
            else f"{cell['bins_an_item']:.3f}" + (f", stash {cell['stash']}" * bool(cell["stash"]))
            for cell in row["ours"].values()
        ]
        rows.append((weights(row["log2_m"]), row["paper"], *ours))
    failures = [
        (
            f"{weights(cell['log2_m'])}, {cell['percent']} %",
            cell["k"],
            cell["bins"],
            f"{cell['failures']:,} of {cell['trials']:,}",
            "none seen" if cell["log2_rate"] is None else f"2^{cell['log2_rate']:.1f}",
            f"2^{_twins(cell['k'], cell['bins']):.1f}",
        )
        for cell in figures["paper_failures"]
    ]
    return (
        title
        + "Placement must fail with probability below 2^-40. Ours follow a proved union bound "
        "(docs/cuckoo.md); they depend on how many positions a client selects, not on m. Bins "
        "hold a whole number of positions, so at 10 and 30 % they hold 22 and 7, a little fewer than "
        "the bound allows.\n\n"
        + table(("m", "paper", "ours, 1 %", "ours, 10 %", "ours, 30 %"), rows)
        + "\n\nThe paper's factors miss 2^-40 by far where few positions are selected: its own "
        "hashing (three independent hashes into one table, no stash) with the best possible placement, tried, and "
        "beside it a bound that needs no trial: two positions whose six hashes all name one bin "
        "cannot both be placed.\n\n"
        + table(("m, k/m", "k", "bins", "failures", "rate", "at least"), failures)
        + "\n\n"
        + stamp(figures)
    )


def _twins(k: int, bins: int) -> float:
    """Log2 of a lower bound on two of k positions having one bin in all six hashes: Bonferroni's."""
    pairs = math.comb(k, 2) * bins**-5.0
    of_three_positions = 3 * math.comb(k, 3) * bins**-8.0
    return math.log2(pairs - pairs**2 / 2 - of_three_positions)


def bins() -> str:
    """Table 4."""
    figures = read_result("table4")
    title = "## Table 4: largest bin\n\n"
    if not figures:
        return title + missing("table4")
    logs = sorted({cell["log2_m"] for cell in figures["cells"]})
    rows = []
    for percent in sorted({cell["percent"] for cell in figures["cells"]}):
        line = [f"{percent} %"]
        for log in logs:
            cell = next(
                c for c in figures["cells"] if (c["log2_m"], c["percent"]) == (log, percent)
            )
            ours = cell["ours"] if cell["mechanism"] == "cuckoo" else "no table"
            line.append(f"{cell['paper']} / {cell['simple_hashing']} / **{ours}**")
        rows.append(line)
    return (
        title
        + "Paper / simple hashing run again with the paper's scale factors / **ours**. Ours are the "
        "same for every bin: public permutations cut into equal pieces instead of hashes, so no bin "
        "is larger than the mean. One run of simple hashing gives less than the paper prints.\n\n"
        + table(("k/m", *(weights(log) for log in logs)), rows)
        + "\n\n"
        + stamp(figures)
    )


def computation() -> str:
    """Table 5 and the two figures."""
    figures = read_result("table5")
    title = "## Table 5, figures 6 and 7: computation\n\n"
    if not figures:
        return title + missing("table5")
    head = ("m, k/m", "paper, keys", "client", "paper / ours", "paper, evaluation + aggregation",
            "server", "paper / ours", "opening", "client, server at l = 32 with checks")  # fmt: skip
    text = (
        title
        + "l = 128, no checks, as in the paper, whose 64 cores stand against 2 of ours. *Client* is the whole path from indices and float "
        "values to bytes; *server* the whole path of one server for one client, from bytes to its "
        "share of the sum, with two clients a round in memory that the process has touched before; "
        "what a network does between them is nobody's time. Each figure is the best of "
        f"{', '.join(f'{rounds} rounds at 2^{log}' for log, rounds in figures['rounds'].items())}. "
        "*Opening*, which the paper does not "
        "give, is what a server does once a round after that: exchange, decode, apply to its model. "
        f"Cells that the paper swapped (evaluation at 2^10, 30 %, {paper.COMPUTATION[10, 30][1]} s; "
        f"aggregation at 2^15 and 2^20, 10 %, {paper.COMPUTATION[20, 10][2]} s) are shown and not compared.\n\n"
        + table(head, [_computation_row(cell) for cell in figures["cells"]])
        + "\n\n![Server seconds](results/server_seconds.png)\n\n"
    )
    text += "Figure 7, m = 2^15 at l = 128:\n\n" + table(
        ("k/m", *(f"{point['percent']} %" for point in figures["figure7_2_15"])),
        [
            ("client", *(seconds(p["client_seconds"]) for p in figures["figure7_2_15"])),
            ("server", *(seconds(p["server_seconds"]) for p in figures["figure7_2_15"])),
        ],
    )
    text += "\n\n" + _claims(figures["figure7_2_15"])
    if figures["2_25_10_percent"]:
        once = figures["permutations_2_25_seconds"]
        text += _largest(figures["2_25_10_percent"], once)
    return text + "\n\n" + stamp(figures)


def _computation_row(cell: Figures) -> tuple[str, ...]:
    printed, ours, beyond = cell["paper_seconds"], cell["l128"], cell["l32_check"]
    server, both = ours["server_seconds"], printed["eval"] + printed["aggregation"]
    return (
        f"{weights(cell['log2_m'])}, {cell['percent']} %",
        seconds(printed["gen"]),
        seconds(ours["client_seconds"]),
        f"{printed['gen'] / ours['client_seconds']:.0f}x",
        seconds(both),
        seconds(server),
        "not compared" if cell["not_compared"] else f"{both / server:.0f}x",
        seconds(ours["round_seconds"]),
        f"{seconds(beyond['client_seconds'])}, {seconds(beyond['server_seconds'])}",
    )


def _largest(largest: list[Figures], permutations_seconds: float) -> str:
    """2^25 weights, with what is done once a session."""
    totals = [
        (b["ring_bits"], permutations_seconds + sum(b[f"{w}_seconds"] for w in PARTS))
        for b in largest
    ]
    return (
        "\n2^25 = 33,554,432 weights, 10 % of them sent, no checks:\n\n"
        + table(
            ("l", "client", "server", "opening"),
            [
                (big["ring_bits"], *(seconds(big[f"{who}_seconds"]) for who in PARTS))
                for big in largest
            ],
        )
        + "\n\nBefore the first round of a session a server, and every client, makes the "
        f"permutations, in {seconds(permutations_seconds)}. The paper says "
        "that its experiments end within 30 s each; all of ours together take "
        f"{' and '.join(f'{seconds(whole)} at l = {bits}' for bits, whole in totals)}. At this size nothing stays in a cache, and memory is "
        "touched for the first time, so that seconds grow faster than weights."
    )


def _claims(points: list[Figures]) -> str:
    """The paper's two claims about figure 7, against what was measured."""
    percents = np.array([point["percent"] for point in points], dtype=float)
    client = np.array([point["client_seconds"] for point in points])
    server = np.array([point["server_seconds"] for point in points])
    correlation = float(np.corrcoef(percents, client)[0, 1])
    return (
        "The paper says that server time hardly depends on k/m and that client time is linear in "
        f"it. Here the client's correlation with k/m is {correlation:.3f}; the server's largest "
        f"time is {server.max() / server.min():.1f} times its smallest (shallower trees make more "
        "of them cheaper, payloads make them dearer).\n"
    )


def communication() -> str:
    """Table 6."""
    figures = read_result("table6")
    title = "## Table 6: upload of a client, MiB\n\n"
    if not figures:
        return title + missing("table6")
    rows = []
    for cell in figures["cells"]:
        ours = cell["l128_bytes"] / MIB
        rows.append(
            (
                f"{weights(cell['log2_m'])}, {cell['percent']} %",
                f"{cell['paper_mib']} ({cell['paper_formula_mib']:.4f})",
                f"{ours:.4f}",
                f"{100 * (ours / cell['paper_formula_mib'] - 1):+.1f} %",
                f"{cell['l128_check_bytes'] / MIB:.4f}",
                f"{cell['dense_l128_bytes'] / MIB:.3f}",
                f"{cell['l32_bytes'] / MIB:.4f}",
                f"{cell['l32_check_bytes'] / MIB:.4f}",
                f"{cell['dense_l32_bytes'] / MIB:.4f}",
            )
        )
    worst = max(figures["cells"], key=lambda c: c["l128_bytes"] / c["paper_formula_mib"])
    above = 100 * (worst["l128_bytes"] / MIB / worst["paper_mib"] - 1)
    blocks = figures["blocks_of_32_of_2_20_scalars_1_percent_bytes"]
    head = ("m, k/m", "paper (its formula)", "l = 128", "against the formula", "with checks",
            "dense", "l = 32", "with checks", "dense")  # fmt: skip
    return (
        title + "Counted while a real round ran; headers, roots and commitments to both servers "
        "included. The paper prints 12.68 k/m times the dense size, cut to three digits. At 2^15, "
        f"1 % we are {above:.1f} % above the digits that it prints. Its 1.25 bins per item cannot keep 2^-40 there (Table 3, last column); ours "
        "keep it with 1.43. 10 and 51 positions use full-domain trees, one a position.\n\n"
        + table(head, rows)
        + f"\n\nIn blocks of 32 values at l = 32, 1 % of 2^20 scalars cost "
        f"**{blocks['no_check'] / 1e6:.3f} MB** without and **{blocks['check'] / 1e6:.3f} MB** "
        "with checks.\n\n" + stamp(figures)
    )


def example() -> str:
    """The introduction's example."""
    figures = read_result("mnist")
    title = "## The introduction's example: 1 % of an MNIST network\n\n"
    if not figures:
        return title + missing("mnist")
    upload = figures["upload_bytes"]
    return (
        title
        + f"The paper: 1,663,370 weights, {figures['paper']}, within a minute of computation. These "
        f"are mebibits: a dense vector of 128-bit values has "
        f"{figures['dense_l128_mebibits']:.0f}, its formula gives "
        f"{figures['paper_formula_mebibits']:.1f}, we upload {figures['l128_mebibits']:.1f} "
        f"({size(upload['l128'])}) in {seconds(figures['client_seconds'])} of client time. At 32 "
        f"bits with checks it is {size(upload['l32_check'])} as scalars, and "
        f"**{size(figures['blocks_of_32_l32_check_bytes'])}** as blocks of 32, where dense shares "
        f"take {size(4 * figures['weights'])}. These are bytes; what blocks do to accuracy was tried "
        "on TREC only (beyond the paper, below).\n\n" + stamp(figures)
    )


def rates() -> str:
    """Section 6."""
    figures = read_result("rates")
    title = "## Section 6: where it pays\n\n"
    if not figures:
        return title + missing("rates")
    printed = figures["paper"]
    names = {"basic": "basic", "psu_theta_5": "with PSU (9 to 5 levels)", "mega_18": "rows of 18"}
    rows = [
        (
            name,
            f"{printed[key]['rate_over_c']:.2f} c",
            f"c < {printed[key]['break_even_percent']:.1f} %",
        )
        for key, name in names.items()
    ]
    ours = figures["ours_break_even_percent"]
    grid = []
    for tau in (1, 18, 32):
        line = [f"{tau}"]
        for bits in (32, 128):
            for check in ("no check", "check"):
                line.append(f"{ours[f'm=2^20 tau={tau} l={bits} {check}']:.1f} %")
        grid.append(line)
    fixed = figures["fixed_submodel_m=2^20_1_percent_l=32"]
    return (
        title
        + "The paper's formulas, with c = k/m and their inequalities the right way round: it prints "
        "c > 13.4 % for its union, where its formula gives 13.2 %, and c > 53.1 % for rows of 18; an "
        "upload is smaller than a dense one *below* these.\n\n"
        + table(("protocol", "upload over dense", "cheaper than dense for"), rows)
        + "\n\nOurs, by search over real plans of m = 2^20 positions, as the largest k/m at which "
        "trees and hints cost no more than dense shares:\n\n"
        + table(("values a position", "l = 32", "with checks", "l = 128", "with checks"), grid)
        + "\n\nFrom 57.8 % on bins hold three positions, so that there are as many bins as "
        "positions and no width pays."
        f"\n\nA fixed submodel (1 % of 2^20 scalars, l = 32) uploads "
        f"{size(fixed['first_round_bytes'])} once and {size(fixed['later_round_bytes'])} in every "
        f"later round of its session (one hint a bin; the paper's k l is "
        f"{size(fixed['paper_formula_later_bytes'])}, which forgets the empty bins).\n\n"
        + stamp(figures)
    )
