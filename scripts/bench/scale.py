"""Whole client and whole server path by size: seconds of every stage, bytes and memory.

    python -m scripts.bench.scale [--log-m 10 15 20] [--fraction 0.1] [--bits 128] [--clients 1]
                                  [--threads 1] [--profile] [--apart] [--json FILE]

The plan has one segment of m scalars, of which each client selects a fraction. A client's path goes
from indices and float values to the bytes of its messages. A server's path goes from bytes to
verified and accumulated sums. Both servers run in this process and are timed separately; the slower
one counts. A server sends a relay in parts, as `torchfsl serve` does. Joining the parts stands for
the network, and its time counts for neither server.

With --apart each server runs once more in a separate process, whose peak memory is then that of one
server. Stages once per session (permutations) or once per round (gather, opening) have separate
lines. AES blocks are those that `costs.predict` counts; their share is of the ceiling measured in
the same run. The servers serve one round after the other, each with new reports. The best round
counts. It is rarely the first one, which runs in memory that is new to the process.
"""

from __future__ import annotations

import contextlib
import cProfile
import functools
import os
import pstats
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.bench import measure
from scripts.bench.apart import run_apart, settle
from scripts.parties import Outbox, bench_plan, two_servers
from scripts.program import Found, Options, option
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import costs
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.kernels.backends import KERNELS, kernels
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import RawSegment, quantise

PATH = ("receive", "verify", "accumulate")
"""Stages of a server that grow with the clients."""

ACCOUNTS = ("native", "sums", "HKDF")
"""Parts of a stage's time that a clock notes separately; see `Clock`."""


class Clock:
    """Seconds of both servers by stage, and those inside native code.

    Account `native` has hashes, key streams and all kernels except expansion with accumulation,
    which is noted as `sums`. Account `HKDF` has HKDF by `cryptography`. The rest is Python, parsing
    and copies.
    """

    def __init__(self) -> None:
        self.seconds: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._stage = (self.seconds[0], "")
        self._inside: list[float] = []
        self._notes: list[tuple[dict[str, float], str, str, float]] = []

    def time(self, party: int, stage: str, call: Callable[[], Any]) -> Any:
        """Run `call` on the account of a server and a stage; stages inside it are not its own."""
        before, self._stage = self._stage, (self.seconds[party], stage)
        self._inside.append(0.0)
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        self._add(party, stage, seconds - self._inside.pop())
        if self._inside:
            self._inside[-1] += seconds
        self._stage = before
        return result

    def noted(self, call: Callable[..., Any], account_name: str) -> Callable[..., Any]:
        """`call`, noted as `account_name` in the stage in which it happens.

        The time of the noting itself, `noting_seconds`, is on no account.
        """
        note, now = self._notes.append, time.perf_counter

        def timed(*arguments: Any, **named: Any) -> Any:
            start = now()
            result = call(*arguments, **named)
            note((*self._stage, account_name, now() - start))
            return result

        return timed

    def settle_notes(self) -> None:
        """Add what was noted to the accounts, and take what noting took out of their stages."""
        for account, stage, account_name, seconds in self._notes:
            name = f"{account_name} {stage}"
            account[name] = account.get(name, 0.0) + seconds
            account[stage] -= noting_seconds()
        self._notes.clear()

    def _add(self, party: int, stage: str, seconds: float) -> None:
        account = self.seconds[party]
        account[stage] = account.get(stage, 0.0) + seconds

    def slower(self) -> dict[str, float]:
        """Stages of the server that took longer over `PATH`."""
        return max(self.seconds, key=lambda account: sum(account[stage] for stage in PATH))


@functools.cache
def noting_seconds() -> float:
    """Seconds that `Clock.noted` takes per call, in addition to the seconds that it notes."""
    calls, least = 100, float("inf")
    for _ in range(20):
        clock = Clock()
        nothing = clock.noted(lambda: None, "")
        start = time.perf_counter()
        for _ in range(calls):
            nothing()
        seconds = time.perf_counter() - start
        least = min(least, (seconds - sum(note[-1] for note in clock._notes)) / calls)
    return least


@contextlib.contextmanager
def watched(servers: tuple[Server, Server], clock: Clock) -> Iterator[None]:
    """Time native code, and additions to the sums apart from the stage they happen in."""
    module = kernels()
    with contextlib.ExitStack() as stack:
        for name in KERNELS:
            account_name = "sums" if name == "accumulate_batch" else "native"
            timed = clock.noted(getattr(module, name), account_name)
            stack.enter_context(mock.patch.object(module, name, timed))
        for name, account_name in (("digest", "native"), ("stream", "native"), ("derive", "HKDF")):
            timed = clock.noted(getattr(kdf, name), account_name)
            stack.enter_context(mock.patch.object(kdf, name, timed))
        for party, server in enumerate(servers):
            sums = server._evaluator.sums
            change = functools.partial(_on_account, clock, party, sums._change)
            stack.enter_context(mock.patch.object(sums, "_change", change))
        yield


def _on_account(
    clock: Clock, party: int, change: Callable[..., None], *arguments: Any, **named: Any
) -> None:
    clock.time(party, "accumulate", lambda: change(*arguments, **named))


NAME = "w"
PROFILE_LINES = 20


def make_plan(m: int, options: Options) -> Plan:
    """One segment of m scalars."""
    k_max = max(1, round(m * options.fraction))
    return bench_plan(
        [SegmentSpec(NAME, "scalars", (TensorSpec(NAME, (m,)),), k_max=k_max)],
        encoding=FixedPoint(ring_bits=options.bits, frac_bits=options.bits // 2 - 3, clip=1.0)
        if options.bits <= 32
        else FixedPoint(ring_bits=options.bits, frac_bits=16, clip=4.0),
        max_clients=max(8, options.clients),
    )


def client_path(
    plan: Plan,
    round_number: int,
    number: int,
    rows: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> list[tuple[int, bytes]]:
    """Indices and values in, messages out."""
    update, _, _ = quantise(plan, {NAME: RawSegment(rows, values)})
    out = Outbox()
    Client(plan, out, client_id=number).start_round(round_number).submit(update)
    return out.sent


def messages_of(
    plan: Plan,
    round_number: int,
    rows: list[npt.NDArray[np.int64]],
    values: npt.NDArray[np.float32],
) -> list[tuple[int, bytes]]:
    """What all clients of a round send, one after the other."""
    return [
        message
        for number, chosen in enumerate(rows)
        for message in client_path(plan, round_number, number, chosen, values)
    ]


def server_path(servers: tuple[Server, Server], sent: list[tuple[int, bytes]]) -> Clock:
    """Messages in, both servers' sums out; leaves the round finished."""
    clock = Clock()
    with watched(servers, clock):
        for party, message in sent:
            due = clock.time(party, "receive", functools.partial(servers[party].receive, message))
            if due is not None:
                other = servers[1 - party]
                parts = functools.partial(servers[party].reports.relay_parts, *due)
                relay = b"".join(clock.time(party, "receive", parts))
                clock.time(1 - party, "receive", functools.partial(other.receive, relay))
        said = step(clock, servers, "close", lambda server, _: server.close_round(), ["", ""])
        said = step(clock, servers, "verify", lambda server, theirs: server.agree(theirs), said)
        step(clock, servers, "verify", lambda server, theirs: server.verify(theirs), said)
        step(clock, servers, "accumulate", lambda server, _: settle(server), said)
        said = step(clock, servers, "gather", lambda server, _: server.commit(), said)
        said = step(clock, servers, "open", lambda server, theirs: server.reveal(theirs), said)
        step(clock, servers, "open", lambda server, theirs: server.open(theirs), said)
    clock.settle_notes()
    return clock


def step(
    clock: Clock,
    servers: tuple[Server, Server],
    stage: str,
    call: Callable[[Server, Any], Any],
    said: list[Any],
) -> list[Any]:
    """One step at both servers on what the other one said before."""
    return [
        clock.time(party, stage, functools.partial(call, servers[party], said[1 - party]))
        for party in (0, 1)
    ]


def best(runs: list[dict[str, float]], stages: tuple[str, ...]) -> dict[str, float]:
    """The run with the least sum over the stages."""
    return min(runs, key=lambda run: sum(run[stage] for stage in stages))


def time_matching(plan: Plan, rows: npt.NDArray[np.int64]) -> float:
    """Seconds of a client's cuckoo hashing, which are part of its path."""
    segment = plan.segments[0]
    if not segment.num_bins:
        return 0.0
    table = plan.permutations(segment)
    shape = segment.num_bins, segment.theta, segment.stash
    return measure.best_seconds(lambda: cuckoo.place(table, rows, *shape), 2)


def profile(call: Callable[[], Any]) -> None:
    """Print where the time of a call goes, the profiler's own included; kernels are in `timed`."""
    profiler = cProfile.Profile()
    profiler.runcall(call)
    functions = pstats.Stats(profiler).strip_dirs().stats  # type: ignore[attr-defined]
    rows = sorted(functions.items(), key=lambda item: item[1][2], reverse=True)[:PROFILE_LINES]
    for (file, line, name), (_, calls, own, *_) in rows:
        print(f"  {1e6 * own:12,.0f} us {calls:8,} calls  {name} ({file}:{line})")
    whole = sum(row[2] for row in functions.values())
    print(f"  {1e6 * whole:12,.0f} us all functions")


def figures_of(log_m: int, options: Options) -> dict[str, Any]:
    """One size."""
    m = 1 << log_m
    plan = make_plan(m, options)
    segment = plan.segments[0]
    rng = np.random.default_rng(log_m)
    set_up = time_permutations(plan)
    rows = [
        np.sort(rng.choice(m, segment.k_max, replace=False)).astype(np.int64)
        for _ in range(options.clients)
    ]
    values = rng.normal(scale=0.2, size=(segment.k_max, 1)).astype(np.float32)
    client_seconds = measure.best_seconds(
        lambda: client_path(plan, 0, 0, rows[0], values), options.repeat
    )
    matching = time_matching(plan, rows[0])
    runs = run_servers(plan, rows, values, options)
    predicted = predict(plan)
    apart = run_apart(plan, messages_of(plan, 0, rows, values)) if options.apart else None
    figures = {"m": m, "k": segment.k_max, "bins": segment.num_bins, "rows_a_bin": segment.theta}
    figures |= {"rows_a_leaf": 1 << segment.nu, "ring_bits": options.bits}
    figures |= {"clients": options.clients, "upload_bytes": costs.client_bytes(plan)}
    figures |= {"permutations_seconds": set_up, "client_seconds": client_seconds}
    figures["matching_seconds"] = matching
    figures["client_aes_blocks"] = predicted.client_aes_blocks
    figures |= server_figures(plan, runs, options.clients)
    figures["predicted_memory_bytes"] = predicted.server_memory_bytes
    figures["peak_memory_bytes"] = measure.peak_memory_bytes()
    return figures | {"server_apart": apart}


def time_permutations(plan: Plan) -> float:
    """Seconds of the permutations, which later calls find made; 0 where there are none."""
    segment = plan.segments[0]
    start = time.perf_counter()
    if segment.num_bins:
        cuckoo.permutations(bytes.fromhex(plan.hash_seed), NAME, segment.m)
    return time.perf_counter() - start


def run_servers(
    plan: Plan, rows: list[npt.NDArray[np.int64]], values: npt.NDArray[np.float32], options: Options
) -> list[dict[str, float]]:
    """Stages of the slower server in each of the rounds, and profiles where they are asked for."""
    servers = two_servers(plan)
    runs = []
    for round_number in range(options.repeat):
        sent = messages_of(plan, round_number, rows, values)
        begin_round(servers, round_number)
        runs.append(server_path(servers, sent).slower())
    if options.profile:
        print("\nclient")
        profile(lambda: client_path(plan, 0, 0, rows[0], values))
        sent = messages_of(plan, options.repeat, rows, values)
        begin_round(servers, options.repeat)
        print("\nboth servers")
        profile(lambda: server_path(servers, sent))
    return runs


def server_figures(plan: Plan, runs: list[dict[str, float]], clients: int) -> dict[str, Any]:
    """A server's seconds and rates: of the best round, and of sums of the best of all."""
    segment, blocks = plan.segments[0], predict(plan).server_aes_blocks
    server = best(runs, PATH)
    path_seconds = sum(server[stage] for stage in PATH) / clients
    rows_of_trees = max(1, segment.num_bins * segment.theta + segment.stash * segment.m)
    native, sums, hkdf = (
        sum(server.get(f"{account} {stage}", 0.0) for stage in PATH) / clients
        for account in ACCOUNTS
    )
    adding = min(sum(run.get(f"sums {stage}", 0.0) for stage in PATH) for run in runs)
    return {
        "server_seconds_a_client": path_seconds,
        "server_native_seconds_a_client": native + sums,
        "server_hkdf_seconds_a_client": hkdf,
        "server_stages": server,
        "server_aes_blocks": blocks,
        "server_blocks_per_second": blocks / path_seconds,
        "sums_ns_a_row": 1e9 * adding / clients / rows_of_trees,
        "server_ns_a_row": 1e9 * path_seconds / rows_of_trees,
    }


def show(row: dict[str, Any], ceiling: float | None) -> None:
    """One size's lines."""
    share = f"{row['server_blocks_per_second'] / ceiling:.0%} of the ceiling" if ceiling else ""
    print(
        f"\nm {row['m']:,}  k {row['k']:,}  bins {row['bins']:,} of {row['rows_a_bin']} rows, "
        f"{row['rows_a_leaf']} a leaf, {row['ring_bits']} bits, {row['clients']} clients\n"
        f"  client, indices and values to bytes   {1e3 * row['client_seconds']:10.2f} ms"
        f"   {row['upload_bytes']:,} bytes up\n"
        f"    matching of it                      {1e3 * row['matching_seconds']:10.2f} ms\n"
        f"  a server, bytes to sums, a client     {1e3 * row['server_seconds_a_client']:10.2f} ms"
        f"   {row['server_blocks_per_second'] / 1e6:,.0f} M blocks/s {share}"
    )
    native, hkdf = (
        row[f"server_{account}_seconds_a_client"] / row["server_seconds_a_client"]
        for account in ("native", "hkdf")
    )
    print(f"    of it Python, parsing and copies    {1 - native - hkdf:10.0%}")
    print(f"    of it HKDF                          {hkdf:10.0%}")
    for stage, seconds in row["server_stages"].items():
        if stage.startswith(ACCOUNTS):
            continue
        part = seconds / row["clients"] if stage in PATH else seconds
        each = " a client" if stage in PATH else " a round"
        print(f"    {stage + each:36}{1e3 * part:10.2f} ms")
    print(
        f"  a server, bytes to sums               {row['server_ns_a_row']:10.3f} ns a row\n"
        f"    expansion and accumulation, best    {row['sums_ns_a_row']:10.3f} ns a row\n"
        f"  permutations, once a session          {1e3 * row['permutations_seconds']:10.2f} ms\n"
        f"  peak memory of all parties            {row['peak_memory_bytes'] / 1e6:10,.0f} MB",
        flush=True,
    )
    if row["server_apart"]:
        print("  a server in a process of its own")
        for name, figure in row["server_apart"].items():
            if name.endswith("_bytes"):
                label = name.removesuffix("_bytes").replace("_", " ")
                print(f"    {label:36}{figure / 1e6:10,.0f} MB")
            else:
                print(f"    {name:36}{1e3 * figure:10.2f} ms")


@measure.benchmark(
    option("--log-m", [10, 15, 20], "sizes"),
    option("--fraction", 0.1, "selected positions, k / m"),
    option("--bits", 128, "ring bits"),
    option("--clients", 1, "clients in the round"),
    option("--threads", 1, "threads of a server"),
    option("--repeat", 3, "repetitions; the best counts"),
    option("--profile", False, "print where the time goes"),
    option("--apart", False, "servers in own processes, too"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    os.environ["TORCHFSL_THREADS"] = str(options.threads)
    ceiling = figures["environment"].get("mmo_blocks_per_second")
    figures["sizes"] = []
    for log_m in options.log_m:
        figures["sizes"].append(figures_of(log_m, options))
        show(figures["sizes"][-1], ceiling and ceiling * options.threads)
