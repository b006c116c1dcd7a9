"""Plays lies of clients, and writes their table in docs/specification/proofs.md.

    python -m scripts.generate.lies_table            # writes it
    python -m scripts.generate.lies_table --check    # fails if it is stale

Each line shows three rounds, under `proofs = none`, `lanes` and `norm`. The plans are those of
`scripts.attacks.lies`: eight rows of two values, clip 100, bound 200. Of five honest clients, two
send 80 for each value of one row. The sixth client lies about that row.

If the sixth client also sent 80, the row would open as 240 with a count of 3. With weights, it
would open as 480 with a weight of 6, of 12 in all. `python -m scripts.attacks --only lying_clients`
plays all lies.
"""

from __future__ import annotations

import logging
from typing import Final
from unittest import mock

from scripts.attacks.lies import BOUND, LIES, WEIGHT_LIES, Lie, in_two_bins, plan_with
from scripts.attacks.lying_clients import CLIENTS, ROW, round_with
from scripts.generate.writing import CHECK, between, write
from scripts.program import ROOT, Options, program
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.plan.statement import PROOFS, Proofs
from torchfsl.submodel.plan import Lane
from torchfsl.types import Whole

PAGE: Final = ROOT / "docs" / "specification" / "proofs.md"
BEGIN, END = "<!-- lies: begin -->\n", "<!-- lies: end -->\n"


def _row(*numbers: int) -> Lie:
    """The tree that holds the row carries these: lane, values."""

    def alter(values: Whole) -> Whole:
        values[values[:, 0] != 0] = numbers
        return values

    return Lie((), alter)


def _just_above(values: Whole) -> Whole:
    held = values[:, 0] != 0
    values[:] = 0
    values[held] = 1, BOUND, 1
    return values


def _everywhere(values: Whole) -> Whole:
    values[:, 1:] = 1 << 29  # of several trees of one row no sum comes back to small numbers
    return values


COUNTED: Final[dict[str, Lie]] = {
    "one value 2**31 - 1": _row(1, (1 << 31) - 1, 80),
    "all values 2**29, in every bin": Lie((), lambda values: _everywhere(values)),
    "a norm one above the bound": Lie((), _just_above),
    "a count of 2": _row(2, 80, 80),
    "a count of -4": _row(-4, 80, 80),
    "a count of 2**30": _row(1 << 30, 80, 80),
    "more counts than `k_max`": LIES["more ones than k_max"],
    "a carry without a wrap": LIES["a carry without a wrap"],
    "two carries in one block": LIES["two carries in one block"],
    "a carry of 2": LIES["a carry of 2"],
    "a carry of 2**40": LIES["a carry of 2**40"],
}

WEIGHTED: Final[dict[str, Lie]] = {
    "a weight of 2**20, where 5 is the largest": WEIGHT_LIES["weight 2**20"],
    "a weight of -1": WEIGHT_LIES["weight -1"],
    "a weight of 2 and of 5 for the row": _row(5, 160, 160),
    "another weight for the dense values": WEIGHT_LIES["another weight for the dense values"],
}


def outcome(proofs: Proofs, lane: Lane, lie: Lie | None) -> str:
    """Cell of the table: the servers' reaction to a lie. None puts the row in several bins."""
    plan = plan_with(proofs, lane=lane)
    several = mock.patch.object(cuckoo, "place", in_two_bins(cuckoo.place, ROW))
    opened = round_with(plan, lie or several, (ROW, ROW, 5, 5, 5))
    if CLIENTS not in opened.clients:
        return "refused"
    row, count = opened.sums["table"][ROW].tolist(), int(opened.lanes["table"][ROW])
    what = f"{row[0]:,} and {row[1]:,}" if row[0] != row[1] else f"{row[0]:,}"
    said = f"is summed: row {what}, {lane} {count:,}"
    if "table" in opened.zeroed:
        said = "rows zeroed" if row == [0, 0] else f"others zeroed; row {what}, {lane} {count:,}"
    if "table" in opened.cut:
        said = f"is cut: row {what}, {lane} {count:,}"
    if lane == "weight":
        said += f", whole weight {opened.total_weight}"
    return said


def render() -> str:
    """The table."""
    lines = ["| a client sends | `none` | `lanes` | `norm` |", "| --- | --- | --- | --- |"]

    def line(name: str, lane: Lane, lie: Lie | None) -> str:
        cells = []
        for proofs in PROOFS:
            of_proofs = lie is not None and lie.wraps is not None
            absent = of_proofs and (proofs == "none" or (proofs == "lanes" and lie.twice))
            cells.append("" if absent else outcome(proofs, lane, lie))
        return f"| {name} | {' | '.join(cells)} |"

    lines += [line(name, "count", lie) for name, lie in COUNTED.items()]
    lines.append(line("one row in two of its bins", "count", None))
    lines += [line(name, "weight", lie) for name, lie in WEIGHTED.items()]
    return "\n".join(lines) + "\n"


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check."""
    logging.getLogger("torchfsl").setLevel(logging.ERROR)  # a line a liar
    return write(options, PAGE, between(PAGE.read_text(), BEGIN, END, render()))
