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


_OPTIONS: tuple[tuple[str, type, float | None, str, str], ...] = (
    ("rows", int, None, "N", "of the table"),
    ("width", int, None, "N", "values a row"),
    ("rows-per-client", int, None, "N", "most that a client fetches and trains"),
    ("clients", int, None, "N", "of a round (default: most of the plan)"),
    ("cores", int, 1, "N", "of a server's machine (default 1)"),
    ("bandwidth", float, 1.0, "GBIT", "gigabits a second of a server's machine (default 1)"),
    ("within", float, 3600.0, "SECONDS", "that a round may take (default 3600)"),
    ("shards", int, None, "N", "of a cluster (see the page 'One server over many machines')"),
)


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
    for name, kind, default, metavar, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
    priced = ("CORE-HOUR", "GIGABYTE")
    parser.add_argument("--prices", type=float, nargs=2, metavar=priced, help="for a rough cost")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from torchfsl.fsl.estimates.estimate import estimate
    from torchfsl.fsl.estimates.measuring import measured_rates

    plan, rates = _plan(options), measured_rates() if options.shards is not None else None
    prices = None if options.prices is None else tuple(options.prices)
    machine = {"cores": options.cores, "bandwidth": options.bandwidth, "within": options.within}
    print(estimate(plan, clients=options.clients, prices=prices, rates=rates, **machine))
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
