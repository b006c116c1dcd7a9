"""Compare `torchfsl.estimate` with rounds on this machine, alone or over shards of Ray.

    python -m scripts.checks.prediction [--clients 48] [--json FILE]
    python -m scripts.checks.prediction --shards 1 2 4 [--rows 131072] [--k-max 256]

The program first measures rates on other sizes than these, as `estimate` does by default. Then it
compares core-seconds of one server for a whole round, and of one client, at three sizes. Both
servers and all clients run in this process. The exit status is 1 if one figure is off by more than
25 %.

With `--shards` the program also measures rates of Ray: empty calls, and bytes that go to a shard
and back. Then server 0 of a pair works over shards of one thread each. The program takes processor
time of the server's calls (the front) and of the shards' processes. The trees of all clients are
there before the first client asks for its answer.

Memory is the most that a shard's process took, minus the most of an idle process with a tiny plan.
Pages of Ray's store are left out, because all processes of a machine share them. The exit status is
1 if seconds or memory are off by more than 25 % (seconds only if each shard has a core). It is also
1 if a shard has more than its part of a single shard's memory, plus `FIXED_BYTES`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.bench.measure import environment, status_bytes
from scripts.bench.sharded import spent_by
from scripts.parties import TimedServer, spread_update, zeros
from scripts.program import Found, Options, check, option
from torchfsl.crypto import discrete_gaussian
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.estimates.estimate import estimate
from torchfsl.fsl.estimates.measuring import Rates, measured_rates, rows_plan, spent_in_round
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.integrations.ray.estimate import EngineRates, estimate_shards
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.submodel.server_model import ServerModel

SIZES: Final = ((1 << 14, 64), (1 << 17, 256), (1 << 19, 512))
"""Rows of 8 values in a table, and rows per client."""

WITHIN: Final = 0.25


def by_size(options: Options) -> Found:
    """Compare all sizes."""
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


FIXED_BYTES: Final = 16 << 20
"""Memory of a shard's process that may not fall with the number of shards, for the default plan."""

_REPEAT: Final = 3


def engine_rates() -> EngineRates:
    """Of Ray: an empty call, and 64 MiB that a shard reads and gives back."""
    import ray

    @ray.remote
    class Echo:
        def process(self) -> int:
            return os.getpid()

        def back(self, value: Any) -> Any:
            return value + 1 if value is not None else None

    echo = Echo.remote()  # type: ignore[attr-defined]
    others = [ray.get(echo.process.remote())]
    spent = functools.partial(spent_by, others)
    calls, data, copies = 300, np.zeros(1 << 26, dtype=np.uint8), 4
    for _ in range(20):
        ray.get(echo.back.remote(None))
    start = spent()
    for _ in range(calls // 10):
        ray.get([echo.back.remote(None) for _ in range(10)])
    middle = spent()
    for _ in range(copies):
        ray.get(echo.back.remote(ray.put(data))).sum()
    end = spent()
    ray.kill(echo)
    return EngineRates((middle - start) / calls, copies * 2 * data.nbytes / (end - middle))


def own_bytes(process: int) -> int:
    """The most memory that a process took, less the pages of the store that it has read by now.

    Such pages stay, so that this is the peak where the peak is now, as after a round.
    """
    return status_bytes("VmHWM", process) - status_bytes("RssShmem", process)


def idle_bytes() -> int:
    """The most memory of a shard's process with a tiny plan and nothing to do."""
    from torchfsl.integrations.ray.actors import RayGrid

    grid = RayGrid(rows_plan(1 << 10, 8, 16, 4), 0, 1)
    found = own_bytes(grid.processes()[0][0])
    grid.close()
    return found


def _compared(
    plan: Plan, count: int, rates: Rates, engine: EngineRates, idle: int
) -> dict[str, Any]:
    from torchfsl.integrations.ray.actors import RayGrid

    grid = RayGrid(plan, 0, count, environment={"TORCHFSL_THREADS": "1"})
    shards = [process for process, _ in grid.processes()]
    make = functools.partial(ShardedEvaluator, open_grid=lambda plan, party: grid)
    state = zeros(plan)
    servers = (
        Server(0, plan=plan, model=ServerModel(state), evaluator=make),
        Server(1, plan=plan, model=ServerModel(state), draw_noise=discrete_gaussian.sample),
    )
    runs = [_round(servers, shards, number) for number in range(_REPEAT + 1)][1:]
    front, worked = min(run[0] for run in runs), min(run[1] for run in runs)
    told = estimate_shards(plan, count, rates=rates, engine=engine)
    predicted = told.front_core_seconds, told.shard_core_seconds * count
    found: Found = {"rows": plan.segments[0].m, "clients": plan.max_clients, "shards": count}
    found |= {"front_predicted": predicted[0], "front_measured": front}
    found |= {"shards_predicted": predicted[1], "shards_measured": worked}
    found["memory_predicted"] = told.shard_memory_bytes
    found["memory_measured"] = max(map(own_bytes, shards)) - idle
    found["store_predicted"] = told.store_bytes
    found["store_pages"] = max(status_bytes("RssShmem", shard) for shard in shards)
    found["traffic"] = [told.sent_bytes, told.exchanged_bytes, told.returned_bytes]
    pairs = (predicted[0], front), (predicted[1], worked), (sum(predicted), front + worked)
    off = [a / b - 1 for a, b in pairs]
    found |= {"each": off, "off": max(abs(one) for one in off)}
    found["memory_off"] = found["memory_predicted"] / found["memory_measured"] - 1
    grid.close()
    return found


def _round(servers: tuple[Server, Server], shards: list[int], number: int) -> tuple[float, float]:
    """Core-seconds of the front and of all shards."""
    plan = servers[0].plan
    first, second = (TimedServer(server) for server in servers)
    start = spent_by(shards) - time.process_time()
    pair: Any = (first, second)
    link = InProcess(*pair)  # one for all clients, so that answers know who else waits
    begin_round(pair, number)
    asking = []
    for client in range(plan.max_clients):
        update = spread_update(plan, client)
        wanted = {s.name: update[s.name].positions for s in plan.retrieving}
        one = Client(plan, link, client_id=client)
        asking.append((one.start_round(number, indices=wanted), update))
    for mine, update in asking:
        mine.download()
        mine.retrieve()
        mine.submit(update)
    finish_round(pair)
    return first.seconds, spent_by(shards) - time.process_time() - start


def by_shards(options: Options) -> Found:
    """Compare all numbers of shards."""
    import ray

    os.environ["TORCHFSL_THREADS"] = "1"
    rates = measured_rates()
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=max(options.shards), object_store_memory=2 << 30, **quiet)
    engine = engine_rates()
    plan = rows_plan(options.rows, 8, options.k_max, options.clients)
    idle = idle_bytes()
    rows = [_compared(plan, count, rates, engine, idle) for count in options.shards]
    for row in rows:
        row["beside_part"] = row["memory_measured"] - rows[0]["memory_measured"] / row["shards"]
    return {
        "ok": all(abs(row["memory_off"]) <= WITHIN for row in rows)
        and all(row["off"] <= WITHIN for row in rows if row["shards"] <= (os.cpu_count() or 1))
        and (rows[0]["shards"] > 1 or all(row["beside_part"] <= FIXED_BYTES for row in rows)),
        "idle_bytes": idle,
        "environment": environment(),
        "rates": dataclasses.asdict(rates),
        "engine": dataclasses.asdict(engine),
        "rounds": rows,
    }


@check(
    option("--clients", 48),
    option("--shards", [0], "numbers of shards, one after the other"),
    option("--rows", 1 << 17, "of the plan for shards"),
    option("--k-max", 256, "of the plan for shards"),
)
def main(options: Options, folder: Path) -> Found:
    """Compare."""
    return by_shards(options) if any(options.shards) else by_size(options)
