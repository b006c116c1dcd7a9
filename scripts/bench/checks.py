"""What safety against malicious parties costs: one round with the checks on, one with them off.

    python -m scripts.bench.checks [--clients 8] [--rows 32768] [--json FILE]

Both rounds run in this process on the same clients, rows and values: retrieval of a table's rows
(with tags on every answer, or without), and an update of those rows and of single values (with
check words on every tree, or without). Printed are the time of both servers together, upload and
download of a client, and AES blocks, each as a ratio. The best of several repetitions counts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.parties import Stopwatch, TimedServers, bench_plan, two_servers
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update

STAGES = (
    "open",
    "model",
    "receive",
    "answer",
    "close and verify",
    "aggregate",
    "open sums and apply",
)


def make_plan(options: argparse.Namespace, checks: bool) -> Plan:
    """A table whose rows are retrieved, and as many single values."""
    table = TensorSpec("table", (options.rows, options.width))
    values = TensorSpec("values", (options.rows,))
    return bench_plan(
        [
            SegmentSpec(
                "table", "rows", (table,), k_max=options.k, tau=options.width, retrieve=True
            ),
            SegmentSpec("values", "scalars", (values,), k_max=options.k),
        ],
        encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=4.0),
        max_clients=options.clients,
        malicious_security=checks,
    )


def updates(plan: Plan, clients: int) -> list[Update]:
    """The same for both plans."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(clients):
        update: Update = {}
        for segment in plan.segments:
            rows = np.sort(rng.choice(segment.m, segment.k_max, replace=False)).astype(np.int64)
            values = rng.integers(-(1 << 15), 1 << 15, size=(segment.k_max, segment.tau))
            update[segment.name] = SegmentUpdate(rows, values)
        made.append(update)
    return made


def play(plan: Plan, made: list[Update]) -> dict[str, Any]:
    """One round; seconds by stage and a client's bytes."""
    first, second = two_servers(plan)
    watch = Stopwatch()
    link = TimedServers((first, second), watch)
    watch.time("open", lambda: begin_round((first, second), 0))
    receipts = set()
    for number, update in enumerate(made):
        rows = update["table"].indices
        assert rows is not None
        one = Client(plan, link, client_id=number).start_round(0, indices={"table": rows})
        one.download()
        one.retrieve()
        receipt = one.submit(update)
        receipts.add((receipt.upload_bytes, receipt.download_bytes))
    lists = watch.time("close and verify", lambda: (first.close_round(), second.close_round()))
    folds = watch.time("close and verify", lambda: (first.agree(lists[1]), second.agree(lists[0])))
    watch.time("close and verify", lambda: (first.verify(folds[1]), second.verify(folds[0])))
    commitments = watch.time("aggregate", lambda: (first.commit(), second.commit()))
    shares = watch.time(
        "open sums and apply", lambda: (first.reveal(commitments[1]), second.reveal(commitments[0]))
    )
    opened = watch.time(
        "open sums and apply", lambda: (first.open(shares[1]), second.open(shares[0]))
    )
    watch.time("open sums and apply", lambda: (first.apply(opened[0]), second.apply(opened[1])))
    expected = np.zeros_like(opened[0].sums["table"])
    for update in made:
        expected[update["table"].indices] += update["table"].values
    assert np.array_equal(opened[0].sums["table"], expected)
    ((upload, download),) = receipts
    return {"seconds": watch.seconds, "upload_bytes": upload, "download_bytes": download}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Both rounds, alternating; the figures."""
    plans = {"on": make_plan(options, True), "off": make_plan(options, False)}
    made = updates(plans["on"], options.clients)
    best: dict[str, dict[str, Any]] = {}
    for _ in range(options.repeat):
        for name, plan in plans.items():
            figures = play(plan, made)
            total = sum(figures["seconds"].values())
            if name not in best or total < best[name]["server_seconds"]:
                best[name] = {**figures, "server_seconds": total}
    for name, plan in plans.items():
        cost = predict(plan)
        best[name]["server_aes_blocks"] = 2 * options.clients * cost.server_aes_blocks
        best[name]["client_aes_blocks"] = cost.client_aes_blocks
    keys = ("server_seconds", "server_aes_blocks", "client_aes_blocks", "upload_bytes",
            "download_bytes")  # fmt: skip
    ratios = {key: best["on"][key] / best["off"][key] for key in keys}
    return {"checks_on": best["on"], "checks_off": best["off"], "ratio": ratios}


def show(figures: dict[str, Any]) -> None:
    """The table."""
    on, off = figures["checks_on"], figures["checks_off"]
    print(f"{'':24}{'checks on':>16}{'checks off':>16}{'ratio':>8}")
    for key, ratio in figures["ratio"].items():
        print(f"{key:24}{_text(on[key]):>16}{_text(off[key]):>16}{ratio:>8.2f}")
    print("\nseconds of both servers together, by stage")
    for stage in STAGES:
        print(f"{stage:24}{on['seconds'][stage]:>16.4f}{off['seconds'][stage]:>16.4f}")


def _text(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=8, help="clients in the round")
    parser.add_argument("--rows", type=int, default=1 << 15, help="rows of the table")
    parser.add_argument("--width", type=int, default=18, help="values a row")
    parser.add_argument("--k", type=int, default=256, help="rows and values a client selects")
    parser.add_argument(
        "--repeat", type=int, default=3, help="repetitions, of which the best counts"
    )
    options = parser.parse_args()
    figures = measure.begin(options)
    figures |= run(options)
    show(figures)
    measure.finish(options, figures)


if __name__ == "__main__":
    main()
