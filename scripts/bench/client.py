"""A client's round of DIN's published shape by Python, by the client core, and by the core in node.

    taskset -c 1 python -m scripts.bench.client [--clients 40] [--node] [--json FILE]

Clients of Python and of the core participate in one round by turns, in one process, on one thread.
The update is quantised, seeds are sealed. Times are processor time inside the client: what servers
need is left out, and of the core what `ctypes` needs. With `--node` as many clients follow in one
process of node, of which the first is given apart; its core is built if it is not there.
TORCHFSL_CPU_PATH chooses the instructions, except in node.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench import measure
from scripts.bench.round import ROWS, federated
from scripts.parties import random_update, sealed_servers
from scripts.program import ROOT, Found, Options, option
from tests.client_core.test_c import deliver_all
from tests.client_core.test_wasm import job_of, wasm
from tests.support.client_core import Core, CoreClient, build
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.update import Update

clock = time.thread_time


class Servers(InProcess):
    """Both servers, with the seconds inside them."""

    seconds = 0.0

    def send(self, party: int, message: bytes) -> None:
        """Deliver, timed."""
        start = clock()
        super().send(party, message)
        self.seconds += clock() - start

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, timed."""
        start = clock()
        found = bytes(super().fetch(party, kind, round_number, client))
        self.seconds += clock() - start
        return found


class TimedLibrary:
    """The core's functions, with the seconds inside them."""

    def __init__(self, library: Any) -> None:
        self.library, self.seconds = library, 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.library, name)

        def call(*given: Any) -> Any:
            start = clock()
            found = function(*given)
            self.seconds += clock() - start
            return found

        return call


def by_turns(plan: Plan, servers: Servers, num_clients: int) -> dict[str, list[float]]:
    """Seconds of each client's round."""
    # At -O3 GCC 12 warns of its own strings (GCC bug 105651).
    settings = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-Wno-restrict")
    built = build("torchfsl_client_tape", *settings, name="release")
    core = Core(built / "libtorchfsl_client_tape.so")
    timed: Any = TimedLibrary(core.lib)
    core.lib = timed
    client = CoreClient(core, plan, servers, 0)
    found: dict[str, list[float]] = {"python": [], "core": []}
    for number in range(2 * num_clients):
        update = random_update(plan, number, 1000)
        wanted = {s.name: update[s.name].positions for s in plan.retrieving}
        servers.seconds, timed.seconds, start = 0.0, 0.0, clock()
        if number % 2:
            own = Client(plan, servers, client_id=number).start_round(1, indices=wanted)
            own.download(), own.retrieve(), own.submit(update)
            found["python"].append(clock() - start - servers.seconds)
        else:
            client.client_id = number
            one = client.start_round(1, indices=wanted)
            one.download(), one.retrieve(), one.submit(update)
            one.close()
            found["core"].append(timed.seconds)
    return found


def in_node(plan: Plan, servers: Servers, first: int, update: Update, num_clients: int) -> Found:
    """Seconds to open module and plan, and of each client's round, in one process of node."""
    with tempfile.TemporaryDirectory() as folder:
        job, times = Path(folder, "job.json"), Path(folder, "times.json")
        made = job_of(plan, update, first, 1, b"", wasm("core.wasm"))
        job.write_text(json.dumps(made | {"clients": num_clients, "times": str(times)}))
        command = ["node", str(ROOT / "tests/client_core/round.mjs"), str(job)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            deliver_all(process, servers, first)
        opened, *rounds = json.loads(times.read_text())
    return {"node opens": [opened], "node first": rounds[:1], "node": rounds[1:]}


@measure.benchmark(
    option("--clients", 40, "of each kind"), option("--node", False, "also the core in node")
)
def main(options: Options, figures: Found) -> None:
    """Run and print milliseconds."""
    os.environ["TORCHFSL_THREADS"] = "1"
    fed = federated()
    plan = fed.make_plan(max_clients=3 * options.clients, rows_per_client=ROWS)
    plan, both = sealed_servers(plan, fed.server_state())
    begin_round(both, 1)
    servers = Servers(*both)
    seconds: Found = by_turns(plan, servers, options.clients)
    if options.node:
        update = random_update(plan, 0, 1000)
        seconds |= in_node(plan, servers, 2 * options.clients, update, options.clients)
    for name, all_of in seconds.items():
        kept = {"min": min(all_of), "median": statistics.median(all_of)}
        figures[name] = {f"{what}_ms": 1e3 * value for what, value in kept.items()}
        measure.print_figure(name, "  ".join(f"{w} {1e3 * v:.2f} ms" for w, v in kept.items()))
