"""Costs of FedAvg, dense two-server shares and Flower's SecAgg+ on the same update."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import measure as bench_measure
from scripts.bench import round as bench_round
from scripts.reproduction import paper
from scripts.reproduction.one_round import dense_plan, measure

CLIENTS, SHARES = 10, 5
SECAGG_PLUS = "scripts.reproduction.secagg_plus"


def baselines(flower_python: str | None) -> dict[str, Any]:
    """One round of 10 clients of DIN's 3,617,023 parameters, dense and with torchfsl.

    Args:
        flower_python: the Python of an environment with flwr 1.41; without it SecAgg+ is skipped.
    """
    parameters = paper.DIN["parameters"]
    assert isinstance(parameters, int)
    figures = {
        "environment": bench_measure.environment(),
        "parameters": parameters,
        "clients": CLIENTS,
        "fedavg": _fedavg(parameters),
        "dense_two_server": _dense(parameters),
        "secagg_plus": secagg_plus(flower_python, parameters, CLIENTS, SHARES),
        "torchfsl": _torchfsl(),
    }
    return figures


def _fedavg(parameters: int) -> dict[str, Any]:
    """No protection: the server adds float32 vectors."""
    rng = np.random.default_rng(0)
    updates = [rng.standard_normal(parameters, dtype=np.float32) for _ in range(CLIENTS)]
    start = time.perf_counter()
    received = [update.tobytes() for update in updates]
    client = time.perf_counter() - start
    start = time.perf_counter()
    total = np.zeros(parameters, dtype=np.float32)
    for message in received:
        total += np.frombuffer(message, dtype=np.float32)
    return {
        "upload_bytes": len(received[0]),
        "client_seconds": client / CLIENTS,
        "server_seconds": time.perf_counter() - start,
    }


def _dense(parameters: int) -> dict[str, Any]:
    """A seed to one server, the masked vector to the other."""
    costs = measure(dense_plan(parameters, clients=CLIENTS))
    return {
        "upload_bytes": costs.upload_bytes,
        "client_seconds": costs.client_seconds,
        "server_seconds": 2 * (CLIENTS * costs.server_seconds + costs.round_seconds),
    }


def _torchfsl() -> dict[str, Any]:
    """The better of two rounds: the second one's memory was touched before."""
    return bench_round.run(CLIENTS, 2)


def secagg_plus(
    python: str | None, parameters: int, clients: int, shares: int
) -> dict[str, Any] | None:
    """One round of Flower's SecAgg+ in a separate environment; None without one."""
    if python is None:
        print("SecAgg+ skipped: pass --flower-python, the Python of an environment with flwr 1.41")
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        sizes = {"parameters": parameters, "clients": clients, "shares": shares, "json": target}
        command = [python, "-m", SECAGG_PLUS, *(f"--{n}={value}" for n, value in sizes.items())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(target.read_text())
    return figures
