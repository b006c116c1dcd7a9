"""`torchfsl estimate`: what a round of a plan, or of one table, will take."""

from __future__ import annotations

import argparse
from typing import Any

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net.addresses import user_path

_DESCRIPTION = """\
Say what a round will take: bytes, core-hours, memory, disk and machines of each server. Of a plan
in a file (Plan.to_json), or of one table whose rows clients fetch and train. Bytes and memory are
counted; seconds come from rates that are measured on this machine first, which takes half a minute.
Not counted: TLS, disks and Python's part of the network, and the clients' training.

  torchfsl estimate --rows 1000000 --width 16 --rows-per-client 256 --clients 10000 --cores 16
"""


def add_command(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser(
        "estimate",
        help="what a round will take: bytes, core-hours, memory, machines",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--plan", type=user_path, metavar="FILE.json", help="a plan, in place of a table"
    )
    parser.add_argument("--rows", type=int, help="of the table")
    parser.add_argument("--width", type=int, help="values a row")
    parser.add_argument("--rows-per-client", type=int, help="most that a client fetches and trains")
    parser.add_argument("--clients", type=int, help="of a round (default: most of the plan)")
    parser.add_argument("--cores", type=int, default=1, help="of a server's machine (default 1)")
    parser.add_argument("--bandwidth", type=float, default=1.0, metavar="GBIT",
                        help="gigabits a second of a server's machine (default 1)")  # fmt: skip
    parser.add_argument("--within", type=float, default=3600.0, metavar="SECONDS",
                        help="that a round may take (default 3600)")  # fmt: skip
    parser.add_argument("--prices", type=float, nargs=2, metavar=("CORE-HOUR", "GIGABYTE"),
                        help="for a rough cost, in any currency")  # fmt: skip
    parser.add_argument("--shards", type=int, help="of a cluster, see docs/ray.md: what the "
                        "front and each of them take, too")  # fmt: skip
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from torchfsl.fsl.estimates.estimate import estimate
    from torchfsl.fsl.estimates.measuring import measured_rates

    plan, rates = _plan(options), measured_rates() if options.shards is not None else None
    found = estimate(
        plan, clients=options.clients, cores=options.cores, bandwidth=options.bandwidth,
        within=options.within, prices=None if options.prices is None else tuple(options.prices),
        rates=rates,
    )  # fmt: skip
    print(found)
    if options.shards is not None:
        from torchfsl.service.server.engines import shards_told

        print(shards_told(plan, options.shards, clients=options.clients, rates=rates))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    from torchfsl.fsl.estimates.measuring import rows_plan

    table = (options.rows, options.width, options.rows_per_client)
    if options.plan is not None:
        if any(value is not None for value in table):
            raise ParameterError("give --plan FILE.json, or --rows, --width and --rows-per-client")
        try:
            return Plan.from_json(options.plan.read_bytes())
        except OSError as error:
            raise ParameterError(f"cannot read {options.plan}: {error.strerror}") from error
    if None in (*table, options.clients):
        raise ParameterError(
            "give --plan FILE.json, or --rows, --width, --rows-per-client and --clients"
        )
    if options.rows_per_client > options.rows:
        raise ParameterError(
            f"--rows-per-client is {options.rows_per_client}, and the table has --rows "
            f"{options.rows}: give as many as it has at most"
        )
    return rows_plan(*table, options.clients)
