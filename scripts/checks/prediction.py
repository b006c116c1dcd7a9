"""Compare `torchfsl.estimate` with measured rounds at three sizes, on this machine.

    python -m scripts.checks.prediction [--clients 48] [--json FILE]

Rates are measured first, as `estimate` does by itself, on other sizes than these. Compared are
core-seconds of one server for a whole round, and of one client, both servers and all clients in
this process. Exit status 1 if one is off by more than 25 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any, Final

from scripts.bench.measure import environment
from scripts.checks.outcome import report
from torchfsl.fsl.estimates.estimate import estimate
from torchfsl.fsl.estimates.measuring import measured_rates, rows_plan, spent_in_round

SIZES: Final = ((1 << 14, 64), (1 << 17, 256), (1 << 19, 512))
"""Rows of 8 values, and rows a client."""

WITHIN: Final = 0.25


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=48)
    return report(parser, check)


def check(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All sizes."""
    rates = measured_rates()
    rows = []
    for size, k_max in SIZES:
        plan = rows_plan(size, 8, k_max, options.clients)
        told, spent = estimate(plan, rates=rates), spent_in_round(plan, options.clients)
        server, client = 3600 * told.server_core_hours, told.client_core_seconds
        row = {"rows": size, "k_max": k_max, "clients": options.clients}
        row |= {"server_predicted": server, "server_measured": spent.server}
        row |= {"client_predicted": client, "client_measured": spent.client}
        row["off"] = max(abs(server / spent.server - 1), abs(client / spent.client - 1))
        rows.append(row)
    return {
        "ok": all(row["off"] <= WITHIN for row in rows),
        "environment": environment(),
        "rates": dataclasses.asdict(rates),
        "rounds": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
