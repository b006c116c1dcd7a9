"""PrivHFL's tables 2 to 4 and figure 8: what a private query costs."""

from __future__ import annotations

from typing import Any

from scripts.reproduction import privhfl_paper as paper
from scripts.reproduction.markdown import missing, size, stamp, table
from scripts.reproduction.results import read_result


def costs() -> str:
    """Tables 2 to 4 and figure 8."""
    figures = read_result("privhfl-costs")
    if not figures:
        return missing("privhfl-costs")
    networks = figures["networks"]
    names = ("VGG-7", "ResNet-8", "ResNet-10")
    rows: list[tuple[str, ...]] = [
        (text, *(f"{s:g} s, {mb:,.2f} MB" for s, mb in values))
        for text, values in paper.PREDICTION.items()
    ]
    for comparison, batch in (("tables", "1"), ("tables", "4"), ("trees", "2")):
        rows.append(
            (
                f"**ours, {comparison}, batches of {batch}**",
                *(_query(networks[name][comparison][batch]) for name in names),
            )
        )
    batches = [
        (
            f"{data}, {part}",
            *("" if v is None else f"{v:g}" for v in values),
            *_rate(networks, data, part, len(values)),
        )
        for (data, part), values in paper.BATCHES.items()
    ]
    head2 = ("Table 2", *(f"paper, {n:,}" for n in (1000, 2500, 5000)),
             *(f"ours, {n:,}" for n in (1000, 2500, 5000)))  # fmt: skip
    return (
        "Table 3, one CIFAR-10 prediction. Ours: processor seconds of all three parties on one core, bytes of all links "
        "without the masked weights, which are sent once for each pair of clients and model "
        f"({', '.join(size(networks[n]['tables']['1']['setup_bytes']) for n in names)}); the paper names neither the "
        "widths of its networks nor machine and network:\n\n"
        + table(("", *names), rows)
        + "\n\nTable 2, seconds of many queries to one answering party. Ours are the seconds of a query in batches of 8, "
        "times their number; sharing and aggregating are in them:\n\n"
        + table(head2, batches)
        + "\n\n"
        + _figure8(networks)
        + _table4(figures)
        + "\n\n"
        + stamp(figures)
    )


def _query(one: dict[str, Any]) -> str:
    spent = sum(one["seconds"].values())
    return f"{spent:.3f} s, {(one['offline_bytes'] + one['online_bytes']) / 1e6:.1f} MB"


def _rate(networks: dict[str, Any], data: str, part: str, count: int) -> list[str]:
    if data != "CIFAR-10" or part not in networks:
        return [""] * count
    batches = networks[part]["tables"]
    best = sum(batches[max(batches, key=int)]["seconds"].values())
    return [f"{best * number:.0f}" for number in (1000, 2500, 5000)]


def _figure8(networks: dict[str, Any]) -> str:
    parts = []
    for name, one in networks.items():
        by_batch = [f"{sum(o['seconds'].values()):.3f} ({b})" for b, o in one["tables"].items()]
        parts.append(f"{name} {', '.join(by_batch)}")
    return (
        "Figure 8 (a GPU is 9.5 times as fast as a CPU at batches of 64): there is no code for GPUs here. Seconds of a "
        f"query by batch: {'; '.join(parts)}.\n\n"
    )


def _table4(figures: dict[str, Any]) -> str:
    batches = ("128", "256", "512", "1024", "2048")
    rows = []
    for name, values in paper.MNIST.items():
        ours = figures["mnist"].get(name)
        shown = [
            f"{own:g}; {other:g}; "
            + (f"{sum(ours[b]['seconds'].values()) * int(b):.2f}" if ours else "-")
            for (own, other), b in zip(values, batches, strict=True)
        ]
        rows.append((name, *shown))
    return (
        "Table 4, seconds of a batch of MNIST pictures: the paper (GPU); HE-Transformer; ours on one core. The protocol "
        "has no squares, so CNet1 is not ours to run:\n\n" + table(("", *batches), rows)
    )
