"""Poll /livez, /readyz and /health of both servers while rounds go on; none may fail.

    python -m scripts.checks.probes --json FILE    # 20 rounds, each page every 10 ms

Exit status 1 if any poll was answered with another status than 200.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.checks.crash_clients import POLICY, make_plan
from scripts.checks.flood import take_part
from scripts.checks.outcome import report
from torchfsl.service.client.owner import Owner
from torchfsl.service.local import LoopbackServers

PAGES = ("livez", "readyz", "health")


@contextlib.contextmanager
def polled(ports: list[int], pause: float, found: Counter[str]) -> Iterator[None]:
    """Every page of every port again and again; `PAGE STATUS` is counted."""
    done = threading.Event()

    def poll(port: int, page: str) -> None:
        while not done.wait(pause):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            found[f"{page} {status}"] += 1

    threads = [threading.Thread(target=poll, args=(p, page)) for p in ports for page in PAGES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def ordinary_rounds(servers: LoopbackServers, rounds: int, clients: int) -> Iterator[int]:
    """Rounds of a new task in which every client takes part; the number of each at its end."""
    owner = Owner(servers.urls, servers.tls, policy=POLICY)
    task = owner.bind(make_plan())
    state = {t.name: np.zeros(t.shape, t.dtype) for s in task.plan.segments for t in s.tensors}
    owner.set_up(task, state)
    for number in range(1, rounds + 1):
        owner.open_round(number, seconds=3600)
        failed = take_part(servers, task.plan, number, clients)
        assert not failed, failed
        owner.close_round(number)
        yield number
    owner.close()


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rounds."""
    found: Counter[str] = Counter()
    with LoopbackServers(folder, clients=options.clients) as servers:
        servers.start()
        start = time.monotonic()
        with polled(servers.metrics_ports, options.pause, found):
            for _ in ordinary_rounds(servers, options.rounds, options.clients):
                pass
        seconds = time.monotonic() - start
    return {
        "rounds": options.rounds, "clients": options.clients, "seconds": round(seconds, 1),
        "polls": dict(sorted(found.items())),
        "ok": set(found) == {f"{page} 200" for page in PAGES},
    }  # fmt: skip


def main() -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two polls")
    return report(parser, run)


if __name__ == "__main__":
    sys.exit(main())
