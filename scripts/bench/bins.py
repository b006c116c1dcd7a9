"""Public bins against the cuckoo table: bytes, leaves, and CPU seconds of both in one run.

    python -m scripts.bench.bins [--positions 262144] [--picks 419] [--block 1] [--clients 20]

A segment of so many scalars, or blocks, and so many picks of a client, with rings of 32 bits,
checked, without and with a lane of counts and its proofs. Seconds are CPU seconds of one server for
a client (a round less its closing, over the clients), and of a client, the best of `--repeat`
rounds, in turns of both layouts.
"""

from __future__ import annotations

from typing import Any

from scripts.bench import measure
from scripts.parties import bench_plan
from scripts.program import Found, Options, option
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.costs import predict
from torchfsl.fsl.estimates.measuring import client_seconds, server_seconds
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import SegmentSpec, TensorSpec


def make_plan(options: Options, lane: Lane, *, binned: bool) -> Plan:
    """One segment; bins or a table."""
    m, k, block = options.positions, options.picks, options.block
    policy = "scalars" if block == 1 else "blocks"
    tensors = (TensorSpec("rest", (m * block,)),)
    return bench_plan(
        [SegmentSpec("rest", policy, tensors, k, block, binned=binned)],
        encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=4.0),
        max_clients=options.clients,
        lane=lane,
    )


def leaves(plan: Plan) -> int:
    """Positions below the trees of one client, which a server expands."""
    return sum(g.num_trees * (g.num_leaves << g.nu) for s in plan.with_trees for g in s.groups)


def figures_of(plan: Plan, options: Options) -> dict[str, Any]:
    """Counted and measured."""
    cost = predict(plan)
    clients = options.clients
    return {
        "upload_bytes": cost.upload_bytes,
        "leaves": leaves(plan),
        "server_aes_blocks": cost.server_aes_blocks,
        "server_ms": 1000 * server_seconds(plan, clients, options.repeat) / clients,
        "client_ms": 1000 * client_seconds(plan, clients, options.repeat),
    }


@measure.benchmark(
    option("--positions", 262_144),
    option("--picks", 419),
    option("--block", 1),
    option("--clients", 20),
    option("--repeat", 3),
)
def main(options: Options, found: Found) -> None:
    """Print the table as Markdown."""
    lanes: tuple[Lane, ...] = ("none", "count")
    print("| lane | layout | upload B | leaves | server blocks | server ms | client ms |")
    print("| --- |" + " --- |" * 6)
    for lane in lanes:
        table, bins = (
            figures_of(make_plan(options, lane, binned=binned), options) for binned in (False, True)
        )
        found[lane] = {"cuckoo": table, "bins": bins}
        for name, row in found[lane].items():
            cells = (f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" for v in row.values())
            print(f"| {lane} | {name} | " + " | ".join(cells) + " |")
        print(
            f"| {lane} | ratio | " + " | ".join(f"{bins[n] / table[n]:.2f}" for n in table) + " |"
        )
