"""`torchfsl estimate`: what a round of a plan, or of one table, will take."""

from __future__ import annotations

import argparse
from typing import Any

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net.addresses import user_path

_DESCRIPTION = """\
Estimate what a round takes: bytes, core-hours, memory, disk and machines of each server. The plan
is in a file (Plan.to_json), or has one table whose rows clients retrieve and train. Bytes and
memory are counted. Seconds come from rates that the command first measures on this machine, which
takes half a minute. Not counted: TLS, disks, Python's part of the network, the clients' training.

  torchfsl estimate --rows 1000000 --width 16 --rows-per-client 256 --clients 10000 --cores 16
"""


_OPTIONS: tuple[tuple[str, type, float | None, str, str], ...] = (
    ("rows", int, None, "N", "rows of the table"),
    ("width", int, None, "N", "values per row"),
    ("rows-per-client", int, None, "N", "most rows that a client retrieves and trains"),
    ("clients", int, None, "N", "clients of a round (default: max_clients of the plan)"),
    ("cores", int, 1, "N", "cores of each server's machine (default: 1)"),
    ("bandwidth", float, 1.0, "GBIT", "network rate of a server, in gigabits/s (default: 1)"),
    ("within", float, 3600.0, "SECONDS", "longest time of a round, in seconds (default: 3600)"),
    ("shards", int, None, "N", "shards of a cluster (page 'One server over many machines')"),
)


def add_command(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser(
        "estimate",
        help="estimate what a round takes: bytes, core-hours, memory, machines",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--plan", type=user_path, metavar="FILE.json", help="file of a plan, instead of a table"
    )
    for name, kind, default, metavar, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
    priced = ("CORE-HOUR", "GIGABYTE")
    text = "prices of a core-hour and of a gigabyte, for a rough cost"
    parser.add_argument("--prices", type=float, nargs=2, metavar=priced, help=text)
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
            raise ParameterError(
                "--plan already has the table: leave out --rows, --width and --rows-per-client"
            )
        try:
            return Plan.from_json(options.plan.read_bytes())
        except OSError as error:
            raise ParameterError(
                f"cannot read {options.plan}: {error.strerror}. Correct the path"
            ) from error
    if None in (*table, options.clients):
        raise ParameterError(
            "give --plan FILE.json, or all of --rows, --width, --rows-per-client and --clients"
        )
    if options.rows_per_client > options.rows:
        raise ParameterError(
            f"--rows-per-client is {options.rows_per_client}, and --rows is {options.rows}: give "
            f"--rows-per-client of at most {options.rows}"
        )
    return rows_plan(*table, options.clients)
