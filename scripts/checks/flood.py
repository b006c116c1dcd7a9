"""Flood both servers with connections of nobody, and check that honest clients are in the sum.

    python -m scripts.checks.flood --json FILE         # 60 s at open, in the round and at close
    python -m scripts.checks.flood --seconds 3         # a taste

Both servers may open 1,024 files and no more (--files). Callers without a certificate connect from
eight addresses, one of them that of the honest clients: they say nothing, or a ClientHello and no
more, or garbage, or connect and leave. A round is run for each phase; the flood begins just before
it, and it must end applied, with every honest client, exact. Exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.checks import flooder
from scripts.checks.crash_clients import make_plan, make_update, sums_of
from scripts.checks.outcome import report
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import connect
from torchfsl.service.local import LoopbackServers
from torchfsl.submodel.server_model import ServerModel

PHASES = ("open", "round", "close")
POLICY = RetryPolicy(attempt_seconds=20, total_seconds=120, longest_pause=0.3)
ADDRESSES = [f"127.0.0.{n}" for n in range(1, 9)]


class FewFiles(LoopbackServers):
    """Both servers, each with a hard limit of open files."""

    def __init__(self, folder: Path, files: int, clients: int) -> None:
        """Nothing runs."""
        super().__init__(folder, clients=clients)
        self.files = files

    def command(self, party: int) -> list[str]:
        """Under a shell that lowers the limit and is gone then."""
        limited = f'ulimit -n {self.files}; exec "$@"'
        return ["sh", "-c", limited, "sh", *super().command(party)]

    def open_files(self, party: int) -> int:
        """Files that a server has open now."""
        process = self.processes[party]
        assert process is not None
        return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@contextlib.contextmanager
def flooded(
    servers: FewFiles, options: argparse.Namespace, found: dict[str, Any]
) -> Iterator[None]:
    """A flood for at least the seconds asked for; what it did goes to `found`."""
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    with context.Manager() as manager:
        made = manager.list()
        attacker = context.Process(
            target=flooder.flood,
            args=(servers.ports, ADDRESSES, options.held, options.rate, done, made),
        )
        attacker.start()
        start, most = time.monotonic(), 0
        time.sleep(min(2.0, options.seconds / 2))  # the flood is there first
        try:
            yield
            found["seconds"] = round(time.monotonic() - start, 2)
            while time.monotonic() - start < options.seconds:
                most = max(most, servers.open_files(0), servers.open_files(1))
                time.sleep(0.1)
        finally:
            most = max(most, servers.open_files(0), servers.open_files(1))
            done.set()
            attacker.join()
        found |= {"connections_made": next(iter(made)), "most_files_open": most}


def take_part(servers: LoopbackServers, plan: Plan, number: int, clients: int) -> list[str]:
    """Honest clients, four at a time; their complaints."""
    failed: list[str] = []
    room = threading.Semaphore(4)

    def one(client: int) -> None:
        update = make_update(plan, 0, number, client)
        try:
            with (
                room,
                connect(
                    servers.urls,
                    servers.tls,
                    client,
                    require=ClientPolicy(min_clients=1),
                    policy=POLICY,
                ) as connection,
            ):
                wanted = {"rows": update["rows"].indices}
                session = connection.client.start_round(number, indices=wanted)  # type: ignore[arg-type]
                session.download()
                session.retrieve()
                session.submit(update)
        except Exception as error:
            failed.append(f"client {client}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def run_phase(
    servers: FewFiles,
    owner: Owner,
    plan: Plan,
    number: int,
    phase: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One round with a flood in one of its phases."""
    found: dict[str, Any] = {"phase": phase, "failed": []}

    def during(name: str) -> Any:
        return flooded(servers, options, found) if name == phase else contextlib.nullcontext()

    with during("open"):
        owner.open_round(number, seconds=3600)
    with during("round"):
        found["failed"] = take_part(servers, plan, number, options.clients)
    with during("close"):
        row = owner.close_round(number)
    opened, _ = owner.result()
    wanted = sums_of(plan, 0, number, tuple(range(options.clients)))
    exact = all(np.array_equal(opened.sums[name], total) for name, total in wanted.sums.items())
    found |= {"in_the_sum": len(opened.clients), "state": row["state"], "exact": exact}
    found["ok"] = exact and not found["failed"] and len(opened.clients) == options.clients
    return found


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A round for each phase."""
    with FewFiles(folder, options.files, options.clients) as servers:
        servers.start()
        owner = Owner(servers.urls, servers.tls, policy=POLICY)
        task = owner.bind(make_plan())
        state = {t.name: np.zeros(t.shape, t.dtype) for s in task.plan.segments for t in s.tensors}
        owner.set_up(task, ServerModel(state).state)
        phases = []
        for number, phase in enumerate(PHASES, start=1):
            phases.append(run_phase(servers, owner, task.plan, number, phase, options))
            print(json.dumps(phases[-1]), flush=True)
        owner.close()
    return {
        "files": options.files, "clients": options.clients, "seconds": options.seconds,
        "phases": phases, "ok": all(phase["ok"] for phase in phases),
    }  # fmt: skip


def main() -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1024, help="limit of open files of a server")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the flood in each phase")
    parser.add_argument("--rate", type=float, default=200.0, help="connections a second and server")
    parser.add_argument("--held", type=int, default=1500, help="connections held to each server")
    parser.add_argument("--clients", type=int, default=8)
    return report(parser, run)


if __name__ == "__main__":
    sys.exit(main())
