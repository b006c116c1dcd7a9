"""Train DIN in this process and through two server processes, and compare.

    scripts/demo --servers                          # sets up what is needed and runs this
    python -m scripts.checks.two_servers --rounds 5 # further options go to the training command

Starts both servers with fresh certificates on loopback, runs the same experiment in one process,
through the servers over mutual TLS, and again with 3 ms of latency added in each direction, stops
the servers, and prints the models' hashes, the messages a client sent, and the time of a round.
Exit status 1 if a hash or a count is not what it should be.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.checks.fault_proxy import FaultProxy, Faults
from scripts.program import ROOT, Options, UsageError, option, program
from torchfsl.service import LoopbackServers


def train(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """One experiment: its summary, and its time a round."""
    print(f"[demo] python -m training {' '.join(arguments)}", flush=True)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "training", *arguments], cwd=ROOT, check=True)
    seconds = time.perf_counter() - start
    out = Path(arguments[arguments.index("--out") + 1])
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    cohort = summary["clients_per_round"]
    rounds = [line["client_seconds"] * cohort + line["server_seconds"] for line in lines]
    return {**summary, "round_seconds": sum(rounds) / len(rounds), "seconds": seconds}


@contextlib.contextmanager
def servers(folder: Path, latency: float) -> Iterator[list[str]]:
    """Both servers with fresh certificates; the training command's options for them."""
    pair = LoopbackServers(folder, clients=2000, level="warning")
    with contextlib.ExitStack() as stack:
        if latency:
            proxies = [FaultProxy(port) for port in pair.ports]
            for proxy in proxies:
                proxy.faults = Faults(delay=latency)
                stack.callback(proxy.start().stop)
            pair.seen_ports = [proxy.port for proxy in proxies]
        stack.enter_context(pair)
        pair.start()
        yield ["--servers", ",".join(pair.urls), "--tls", str(pair.tls)]


def report(runs: dict[str, dict[str, Any]], reports: int) -> int:
    """Print the comparison; the exit status."""
    print(f"\n{'run':<28} {'model_sha256':<18} {'exact rounds':>12} {'seconds a round':>16}")
    for name, run in runs.items():
        exact = f"{run['exact_rounds']}/{run['rounds']}"
        print(
            f"{name:<28} {run['model_sha256'][:16]:<18} {exact:>12} {run['round_seconds']:>16.2f}"
        )
    failed = len({run["model_sha256"] for run in runs.values()}) != 1
    for name, run in runs.items():
        counts = {
            phase: count / reports
            for phase, count in sorted(run.get("messages", {}).items())
            if phase.split()[0] in ("Model", "Retrieve", "Submit")
        }
        if counts:
            print(f"{name}: messages a client and round: {counts}")
            failed |= any(count != 1 for count in counts.values())
    print("FAILED: the runs differ" if failed else "all models are equal, bit for bit")
    return int(failed)


@program(
    option("--rounds", 5),
    option("--clients-per-round", 20),
    option("--latency-ms", 3.0, "in each direction"),
    option("--out", Path, "folder of the runs; a temporary one by default"),
    finds=False,
    further="the training command",
)
def main(options: Options) -> int:
    """Run the three experiments."""
    if options.out is not None and options.out.exists():
        raise UsageError(f"{options.out} exists: choose another --out")
    with contextlib.ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        common = ["din", "--rounds", str(options.rounds), "--quiet", "--eval-every", "1000"]
        common += ["--clients-per-round", str(options.clients_per_round), *options.further]
        runs = {"in process": train([*common, "--out", str(folder / "in-process")], folder)}
        with servers(folder, 0.0) as where:
            runs["two servers"] = train([*common, *where, "--out", str(folder / "servers")], folder)
        with servers(folder / "slow", options.latency_ms / 1000) as where:
            name = f"two servers, {options.latency_ms:g} ms more"
            runs[name] = train([*common, *where, "--out", str(folder / "latency")], folder)
    return report(runs, options.rounds * options.clients_per_round)
