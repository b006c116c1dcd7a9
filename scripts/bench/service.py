"""Many clients through two server processes: throughput, memory and transport costs.

    python -m scripts.bench.service --json FILE                # 1,000 DIN-shaped clients
    python -m scripts.bench.service --clients 100 --rows 5000   # smaller

The clients of one round run in this process. Each client has a separate certificate and separate
connections, uploads trees, retrieves its rows and submits a report. The program also prints the
processor time of bare evaluation for the same round. Bare evaluation is two `torchfsl.fsl.Server`
objects in one process without any transport or storage.

Two such processes run at once and the mean counts, because the servers also run without an idle
core. The time is a fixed part and a part per client, from rounds of two sizes (--sample). Transport
and storage, seals included, is the processor time of the server processes minus that of bare
evaluation. Of it the program prints separately the time of the event loops (each process's first
thread) and of gRPC's own threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.bench import measure
from scripts.checks.round_clients import take_part
from scripts.parties import TimedServer, bench_plan, random_update, two_servers, zeros
from scripts.program import Found, Options, option
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error
from torchfsl.fsl import costs
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import connect
from torchfsl.service.local import LoopbackServers
from torchfsl.submodel.segments import SegmentSpec, TensorSpec

POLICY = RetryPolicy(attempt_seconds=300, total_seconds=900, longest_pause=1.0)


def make_plan(options: Options) -> Plan:
    """DIN's published shape: 197,372 rows of 18, and 64,327 dense weights."""
    rows = (TensorSpec("rows", (options.rows, 18), "float32"),)
    rest = (TensorSpec("rest", (options.dense,), "float32"),)
    specs = [
        SegmentSpec("rows", "rows", rows, k_max=options.k_max, tau=18, retrieve=True),
        SegmentSpec("rest", "dense", rest),
    ]
    return bench_plan(specs, encoding=FixedPoint(32, 16, 4.0), max_clients=options.clients)


def bench_evaluation(plan: Plan, state: dict[str, Any], clients: int) -> float:
    """Both servers' own work for a round of so many clients, in this process: CPU seconds."""
    servers = two_servers(plan, state)
    timed = [TimedServer(server) for server in servers]
    begin_round(servers, 1)
    link = InProcess(timed[0], timed[1])  # type: ignore[arg-type]
    for client in range(clients):
        take_part(Client(plan, link, client_id=client), 1, random_update(plan, client, 100))
    start = time.process_time()
    finish_round(servers)
    return sum(server.seconds for server in timed) + time.process_time() - start


class Sampler:
    """Peak memory of the server processes."""

    def __init__(self, pids: list[int]) -> None:
        self.anonymous = self.total = 0
        self._pids, self._done = pids, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.5):
            for pid in self._pids:
                self.anonymous = max(self.anonymous, measure.status_bytes("RssAnon", pid))
                self.total = max(self.total, measure.status_bytes("VmRSS", pid))


def cpu_seconds(pids: list[int]) -> dict[str, float]:
    """Processor time of processes so far: all, their event loops, gRPC's threads that live."""
    found = {"servers": 0.0, "event_loops": 0.0, "grpc_threads": 0.0}
    for pid in pids:
        found["servers"] += _seconds(Path(f"/proc/{pid}/stat"))
        found["event_loops"] += _seconds(Path(f"/proc/{pid}/task/{pid}/stat"))
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
                if (task / "comm").read_text().strip() == "event_engine":
                    found["grpc_threads"] += _seconds(task / "stat")
    return found


def _seconds(stat: Path) -> float:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench_load(options: Options, folder: Path) -> dict[str, Any]:
    """The round through the servers."""
    config = "[limits]\nwait_seconds = 600\ncall_seconds = 900\nidle_seconds = 600\n"
    config += "peer_seconds = 600\n[storage]\nreserve_bytes = 268435456\n"
    with LoopbackServers(
        folder, clients=options.clients, config=config, level="warning"
    ) as servers:
        servers.start()
        owner = Owner(servers.urls, servers.tls, policy=POLICY)
        task = owner.bind(make_plan(options))
        plan = task.plan
        state = zeros(plan)
        owner.set_up(task, state)
        pids = [process.pid for process in servers.processes if process is not None]
        sampler = Sampler(pids)
        before = cpu_seconds(pids)
        start = time.perf_counter()
        owner.open_round(1, seconds=86400)
        errors: list[str] = []

        how: dict[str, Any] = {"require": ClientPolicy(min_clients=1), "policy": POLICY}

        def one(client: int) -> None:
            try:
                with connect(servers.urls, servers.tls, client, **how) as connection:
                    take_part(connection.client, 1, random_update(plan, client, 100))
            except Error as error:
                errors.append(f"client {client}: {error}")

        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(one, range(options.clients)))
        collected = time.perf_counter() - start
        row = owner.close_round(1)
        wall = time.perf_counter() - start
        after = cpu_seconds(pids)
        sampler.stop()
        owner.close()
    assert row["accepted"] == options.clients - len(errors), row
    return {
        "errors": errors,
        "accepted": row["accepted"],
        "collect_seconds": collected,
        "round_seconds": wall,
        "clients_per_second": options.clients / wall,
        **{f"{name}_cpu_seconds": after[name] - before[name] for name in after},
        "server_peak_anonymous_bytes": sampler.anonymous,
        "server_peak_resident_bytes": sampler.total,
        "upload_bytes_per_client": costs.client_bytes(plan),
        "download_bytes_per_client": costs.download_bytes(plan),
        **raw_evaluation(plan, state, options.clients, options.sample),
    }


def raw_evaluation(
    plan: Plan, state: dict[str, Any], clients: int, sample: tuple[int, int]
) -> dict[str, float]:
    """CPU seconds of both servers' bare evaluation, and clients a second if it were all."""
    plan = dataclasses.replace(plan, server_keys=())  # nobody is in between in one process
    few, many = (min(clients, count) for count in sample)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:

        def side_by_side(count: int) -> float:
            found = pool.map(bench_evaluation, [plan] * 2, [state] * 2, [count] * 2)
            return sum(found) / 2

        side_by_side(few)  # warm
        first, second = side_by_side(few), side_by_side(many)
    each = (second - first) / (many - few) if many > few else second / many
    total = max(0.0, first - few * each) + clients * each
    return {
        "evaluation_cpu_seconds": total,
        "evaluation_cpu_seconds_per_client": each,
        "evaluation_clients_per_second": clients * (os.cpu_count() or 1) / total,
    }


@measure.benchmark(
    option("--clients", 1000),
    option("--at-once", 50),
    option("--rows", 197_372),
    option("--k-max", 512),
    option("--dense", 64_327),
    option("--sample", [20, 120], "clients of the bare evaluations", nargs=2),
)
def main(options: Options, figures: Found) -> None:
    """Run the round; exit status 1 if a client failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = bench_load(options, Path(folder))
    evaluation = found["evaluation_cpu_seconds"] / found["servers_cpu_seconds"]
    found |= {"clients": options.clients, "at_once": options.at_once}
    found["transport_and_storage_share"] = 1 - evaluation
    found["load_generator_cpu_seconds"] = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for name, value in found.items():
        print(f"{name:<34} {value}")
    figures |= found | {"ok": not found["errors"]}
