"""Run an app in Flower as it is deployed, and simulated, and compare the models.

    scripts/checks/flower.sh                                   # makes an environment and runs this
    python -m scripts.checks.flower_runs --only plain,kill     # in one with Flower, by name
    python -m scripts.checks.flower_runs --no-simulation       # where Ray is not installed

The program starts a SuperLink, two SuperNodes and two `torchfsl serve`, all on loopback. On them it
starts `scripts/checks/flower_app` by `flwr run`, two rounds each time:

    plain          nothing fails
    raise-before   client 0 raises in round 1 before it connects
    raise-inside   client 0 raises between its fetch and its report
    kill           client 0 is killed at that point, with SIGKILL
    restart        server 1 is killed at that point and started again
    simulation     four nodes in Flower's simulation, with separate servers

In every run the servers' model must be bit-identical to that of `torchfsl.fsl.run_round` on the
updates that clients sent. Each aggregate must have the expected clients, and no Message may hold an
array.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.program import ROOT, Found, Options, check, option
from torchfsl import Plan
from torchfsl.service import LoopbackServers
from torchfsl.service.local import free_ports

APP = ROOT / "scripts" / "checks" / "flower_app"
PATIENCE = 1200.0
LINK = ("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")

RUNS = {
    "plain": ("none", {1: (0, 1), 2: (0, 1)}),
    "raise-before": ("raise-before", {1: (1,), 2: (0, 1)}),
    "raise-inside": ("raise-inside", {1: (0, 1), 2: (0, 1)}),
    "kill": ("kill", {1: (1,), 2: (0, 1)}),
    "restart": ("wait", {1: (0, 1), 2: (0, 1)}),
    "simulation": ("none", {1: (0, 1, 2, 3), 2: (0, 1, 2, 3)}),
}
"""Fault of client 0 in round 1, and who is in the sums."""


def run(
    name: str,
    folder: Path,
    flower: dict[str, str],
    servers: LoopbackServers | None,
    kill_seconds: float,
) -> dict[str, Any]:
    """One `flwr run`, and the comparison."""
    out = folder / name
    out.mkdir()
    fault, wanted = RUNS[name]
    config = {"out": str(out), "fault": fault, "nodes": 4 if servers is None else 2}
    if servers is not None:
        config |= {"servers": ",".join(servers.urls), "tls": str(servers.tls)}
        config["timeout"] = kill_seconds if fault == "kill" else 900.0
    text = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in config.items())
    started = time.monotonic()
    command = [tool("flwr"), "run", str(APP), "here", "--run-config", text]
    if servers is None:
        command += ["--federation-config", "num-supernodes=4"]
    done = subprocess.run(command, env=flower, capture_output=True, text=True, check=False)
    print(f"[{name}] {done.stdout.strip()} {done.stderr.strip()}", file=sys.stderr, flush=True)
    if done.returncode != 0:
        raise RuntimeError(f"flwr run ended with status {done.returncode}")
    if fault == "wait" and servers is not None:
        wait_for(out / "inside")
        servers.kill(1)
        time.sleep(2.0)
        servers.start(1)
        (out / "go").touch()
    wait_for(out / "found.json")
    told = json.loads((out / "found.json").read_text())
    opened = {int(number): tuple(who) for number, who in told.pop("opened").items()}
    digest = replay(out, Plan.from_json(told.pop("plan")), opened)
    good = told["model_sha256"] == digest and opened == wanted and told["array_bytes"] == 0
    told |= {"run_round": digest, "opened": opened, "seconds": round(time.monotonic() - started, 1)}
    print(f"[{name}] {'ok' if good else 'NOT OK'} {told}", file=sys.stderr, flush=True)
    return {"ok": good, **told}


def replay(out: Path, plan: Plan, opened: dict[int, tuple[int, ...]]) -> str:
    """The digest of `run_round` on what the clients wrote down."""
    from tests.support.flower_task import replayed

    rounds = {}
    for number, clients in opened.items():
        files = {c: out / f"sent-{number}-{c}.pickle" for c in clients}
        rounds[number] = clients, {c: _read(f) for c, f in files.items() if f.exists()}
    state = _read(out / "state.pickle")
    return replayed(dataclasses.replace(plan, server_keys=()), state, rounds)


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - written by this check's own clients


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[tuple[LoopbackServers, dict[str, str]]]:
    """SuperLink, two SuperNodes, two servers; the environment for `flwr run`."""
    folder.mkdir(parents=True)
    control, *nodes = free_ports(3)
    flower = environment(folder, f"127.0.0.1:{control}")
    with LoopbackServers(folder / "servers", clients=2) as servers, contextlib.ExitStack() as stack:
        servers.start()
        stack.enter_context(process([*LINK, "--port", str(control)], folder, flower))
        wait_for_link(control)
        for number, port in enumerate(nodes):
            own = f'torchfsl-tls="{servers.tls}" torchfsl-name="client-{number}"'
            own += f' torchfsl-require="{folder / "policy.toml"}" partition-id={number}'
            node = f"flower-supernode --insecure --superlink 127.0.0.1:{control} --port {port}"
            command = [*node.split(), "--node-config", own]
            stack.enter_context(process(command, folder, flower))
        (folder / "policy.toml").write_text("min_clients = 1\n")
        yield servers, flower


@contextlib.contextmanager
def simulation(folder: Path) -> Iterator[dict[str, str]]:
    """A SuperLink that simulates its nodes; the environment for `flwr run`."""
    folder.mkdir(parents=True)
    (control,) = free_ports(1)
    flower = environment(folder, f"127.0.0.1:{control}")
    with process([*LINK, "--simulation", "--port", str(control)], folder, flower):
        wait_for_link(control)
        yield flower


def environment(folder: Path, address: str) -> dict[str, str]:
    """A home of Flower's own, and in it a connection `here`."""
    home = folder / "home"
    home.mkdir()
    where = f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n{where}')
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def process(command: list[str], folder: Path, flower: dict[str, str]) -> Iterator[None]:
    """One of Flower's own, with its log in the folder."""
    log = folder / f"{command[0]}-{time.monotonic_ns()}.log"
    with log.open("w") as file:
        one = subprocess.Popen(
            [tool(command[0]), *command[1:]], env=flower, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            one.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(timeout=20)
            one.kill()
            one.wait()
            print(f"{log.name}:\n{log.read_text()[-3000:]}", file=sys.stderr, flush=True)


def tool(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).parent / name)


def wait_for_link(port: int) -> None:
    """Until the SuperLink answers.

    Raises:
        TimeoutError: it did not, in time.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/health"
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    raise TimeoutError("the SuperLink does not answer")


def wait_for(path: Path) -> None:
    """Until a file is there.

    Raises:
        RuntimeError: the ServerApp failed.
        TimeoutError: it was not there in time.
    """
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        failed = path.with_name("failed")
        if failed.exists():
            raise RuntimeError(f"the ServerApp failed: {failed.read_text()}")
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path.name} was not written")
        time.sleep(0.1)


@check(
    option("--only", ",".join(RUNS), "names of runs"),
    option("--kill-seconds", 60.0, "that the strategy waits for a killed client; more if busy"),
    option("--no-simulation", False, "without Ray"),
)
def main(options: Options, folder: Path) -> Found:
    """Run what was asked for."""
    names = [n for n in options.only.split(",") if n in RUNS]
    if options.no_simulation:
        names = [n for n in names if n != "simulation"]
    found: dict[str, Any] = {}
    deployed = [name for name in names if name != "simulation"]
    if deployed:
        with deployment(folder / "deployment") as (servers, flower):
            for name in deployed:
                found[name] = run(name, folder, flower, servers, options.kill_seconds)
    if "simulation" in names:
        with simulation(folder / "simulated") as flower:
            found["simulation"] = run("simulation", folder, flower, None, 0.0)
    return {"ok": bool(found) and all(one["ok"] for one in found.values()), "runs": found}
