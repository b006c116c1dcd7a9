"""The figures of the documentation: docs/figures/*.svg.

    python -m scripts.generate.figures

Trees and tables in them are computed by the library's own code under fixed seeds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from torchfsl.fsl.cuckoo.placement import candidates, match, permutations
from torchfsl.kernels.portable import trees

FOLDER: Final = ROOT / "docs" / "figures"
INK, SOFT, BLUE, ORANGE, GREEN = "#1f2430", "#8a93a5", "#dbe6ff", "#ffe2c4", "#d9f2dd"
LEAF: Final = 5
"""The leaf that the figure's client selects."""
ITEMS: Final = (3, 7, 11, 16, 20, 22)
"""The rows that go into the figure's cuckoo table."""

NEITHER: Final = "Neither server learns which rows a client used, nor what it sent."
ABOVE: Final = (
    "In each node a seed (its first digits) and a control bit. "
    "Off the path to the selected row both servers hold the same:"
)
BELOW: Final = (
    "their difference is nothing there, and at the selected row "
    "it is random, until the hint turns it into the client's value."
)
BINS: Final = "bins of three sub-tables; each holds 4 of the 24 rows, and one tree"
EACH_ROW: Final = (
    "Each row may go to one bin of each sub-table (grey or black); matching "
    "finds a bin for each. Empty bins get dummies."
)


def text(
    x: float, y: float, words: str, size: int = 14, anchor: str = "middle", **more: str
) -> str:
    """Words centred at x, their baseline at y."""
    weight = f' font-weight="{more["weight"]}"' if "weight" in more else ""
    fill = more.get("fill", INK)
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
        f"{weight}>{words}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{INK}"/>'
    )


def line(x0: float, y0: float, x1: float, y1: float, *, arrow: bool = True, ink: str = INK) -> str:
    """A line, with an arrow head at its end."""
    end = ' marker-end="url(#head)"' if arrow else ""
    return f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="{ink}"{end}/>'


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole file, on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif"><title>{title}</title>'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def one_round() -> str:
    """Clients, two servers, and the five things that happen."""
    parts = []
    for i, name in enumerate(("client 0", "client 1", "client 2")):
        y = 40 + 100 * i
        parts += [
            box(20, y, 150, 64, BLUE),
            text(95, y + 26, name, weight="bold"),
            text(95, y + 47, "own data, own rows", 12),
        ]
    for i in (0, 1):
        y = 62 + 130 * i
        parts += [
            box(560, y, 170, 90, ORANGE),
            text(645, y + 32, f"server {i}", weight="bold"),
            text(645, y + 53, "the whole model", 12),
            text(645, y + 72, "a share of each update", 12),
        ]
    parts += [line(645, 152, 645, 190), line(645, 192, 645, 154)]
    steps = (
        "1  trees: which rows, hidden",
        "2  answers: those rows, sealed",
        "3  train, with your own loop",
        "4  hints: the changes, on the same trees",
    )
    for i, (step, down) in enumerate(zip(steps, (True, False, None, True), strict=True)):
        y = 66 + 68 * i
        parts.append(text(365, y, step))
        if down is not None:
            parts.append(line(190, y + 14, 540, y + 14) if down else line(540, y + 14, 190, y + 14))
    parts += [
        text(645, 312, "5  the exact sum of all", 14),
        text(645, 331, "changes is opened once", 14),
        text(20, 350, NEITHER, 13, "start", weight="bold"),
    ]
    return drawing(760, 366, "One round of federated submodel learning", parts)


def states_of(depth: int) -> list[list[list[str]]]:
    """By party and level, what stands at each node: a seed's first byte and the control bit."""
    roots = [np.full((1, 16), 17 + party, dtype=np.uint8) for party in (0, 1)]
    for party in (0, 1):
        roots[party][0, 0] = roots[party][0, 0] & 0xFE | party
    key = bytes(range(16))
    cw, right, _, _ = trees.tree_gen(key, *roots, np.array([LEAF], dtype=np.uint64), depth)
    found = []
    for party in (0, 1):
        levels = []
        for level in range(depth + 1):
            states = trees.tree_eval(key, roots[party], cw[:level], right[:level], 1 << level)[0]
            levels.append([f"{s[1]:02x} {s[0] & 1}" for s in states])
        found.append(levels)
    return found


def tree_and_hint(depth: int = 3) -> str:
    """Both servers' trees: equal but on the way to one leaf."""
    parts, states = [], states_of(depth)
    for party in (0, 1):
        left = 30 + 370 * party
        parts.append(text(left + 165, 28, f"what server {party} computes", weight="bold"))
        for level in range(depth + 1):
            num, gap = 1 << level, 330 / (1 << level)
            y = 44 + 68 * level
            for node in range(num):
                x = left + gap * (node + 0.5)
                differs = states[0][level][node] != states[1][level][node]
                if level:
                    above = left + gap * 2 * (node // 2 + 0.5)
                    ink = INK if differs else SOFT
                    parts.append(line(above, y - 38, x, y, arrow=False, ink=ink))
                parts += [
                    box(x - 19, y, 38, 30, ORANGE if differs else "#fff"),
                    text(x, y + 20, states[party][level][node], 12),
                ]
        for leaf in range(1 << depth):
            parts.append(text(left + 330 / 8 * (leaf + 0.5), 296, f"row {leaf}", 11, fill=SOFT))
    parts += [text(385, 326, ABOVE, 13), text(385, 346, BELOW, 13)]
    return drawing(770, 362, "A tree and its hint", parts)


def cuckoo_table(m: int = 24, theta: int = 4) -> str:
    """Three sub-tables, where each row could go, and where it went."""
    table = permutations(bytes(16), "figure", m)
    bins = 3 * (m // theta)
    choices = candidates(table, np.array(ITEMS), bins, theta)
    placed = match(choices, bins)
    parts = [
        text(20, 24, "rows a client wants", 13, "start", weight="bold"),
        text(465, 24, BINS, 13, weight="bold"),
    ]
    left, step, width = 190, 182, 27
    for b in range(bins):
        x = left + step * (b // (bins // 3)) + (width + 1) * (b % (bins // 3))
        used = b in placed
        parts += [box(x, 250, width, 44, GREEN if used else "#fff")]
        if used:
            item = ITEMS[int(np.flatnonzero(placed == b)[0])]
            parts.append(text(x + width / 2, 277, str(item), 13, weight="bold"))
    for i, item in enumerate(ITEMS):
        y = 44 + 32 * i
        parts += [box(40, y, 40, 26, BLUE), text(60, y + 18, str(item), 13)]
        for b in choices[:, i]:
            x = left + step * (b // (bins // 3)) + (width + 1) * (b % (bins // 3)) + width / 2
            ink = INK if placed[i] == b else "#d3d8e2"
            parts.append(line(82, y + 13, x, 248, arrow=bool(placed[i] == b), ink=ink))
    for i in range(3):
        parts.append(text(left + step * i + 83, 314, f"sub-table {i}", 12, fill=SOFT))
    parts.append(text(385, 342, EACH_ROW, 13))
    return drawing(770, 358, "A cuckoo table", parts)


def figures() -> dict[str, str]:
    """Every figure by its file's name."""
    return {
        "round.svg": one_round(),
        "tree-and-hint.svg": tree_and_hint(),
        "cuckoo-table.svg": cuckoo_table(),
    }


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the figures."""
    return max(write(options, FOLDER / name, drawn) for name, drawn in figures().items())
