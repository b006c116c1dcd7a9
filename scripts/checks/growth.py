"""Many rounds of two servers: memory and open files may not grow, no page may fail.

    python -m scripts.checks.growth --json FILE                         # 400 rounds of 4 clients
    python -m scripts.checks.growth --rounds 20 --pause 0.01            # each page every 10 ms

Every `--every` rounds the program notes each server's resident memory, open files and threads, and
the bytes of its state folder. The exit status is 1 if the most memory in the last quarter exceeds
that in the second quarter by more than `--slack`. It is also 1 if the last quarter's fewest open
files or threads exceed the second quarter's most by three or more. Smaller changes are normal,
because a connection or a thread of a pool comes and goes.

The ledger keeps a row for every round, so the folder grows by some bytes per round. The program
prints this growth, which is not a failure. Meanwhile it polls /livez, /readyz and /health of both
servers, with `--pause` seconds between two polls. The exit status is also 1 if a server answered a
poll with another status than 200.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.measure import status_bytes
from scripts.checks.flood import send_reports
from scripts.checks.round_clients import set_up_owner
from scripts.program import Found, Options, check, option
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
    """Run rounds of a new task, each with every client; yields each number at its end."""
    owner, task, _ = set_up_owner(servers)
    for number in range(1, rounds + 1):
        owner.open_round(number, seconds=3600)
        failed = send_reports(servers, task.plan, number, clients)
        assert not failed, failed
        owner.close_round(number)
        yield number
    owner.close()


def noted(servers: LoopbackServers, number: int) -> list[dict[str, int]]:
    """Of each server after a round: memory in bytes, open files, threads, bytes of its folder."""
    found = []
    for party in (0, 1):
        process = servers.processes[party]
        assert process is not None
        proc = Path(f"/proc/{process.pid}")
        files = [path.stat() for path in servers.state(party).rglob("*") if path.is_file()]
        note = {
            "round": number,
            "memory": status_bytes("VmRSS", process.pid),
            "files": len(list((proc / "fd").iterdir())),
            "threads": len(list((proc / "task").iterdir())),
            "folder": sum(one.st_blocks * 512 for one in files),
        }
        found.append(note)
    return found


def within(notes: list[dict[str, int]], name: str, first: float, last: float) -> list[int]:
    """The values within a part of the rounds."""
    rounds = notes[-1]["round"]
    return [n[name] for n in notes if first * rounds < n["round"] <= last * rounds]


def grown(notes: list[dict[str, int]], slack: float) -> list[str]:
    """What grew from the second quarter to the last."""
    found = []
    for name in ("memory", "files", "threads"):
        before, after = max(within(notes, name, 0.25, 0.5)), within(notes, name, 0.75, 1.0)
        if max(after) > before * (1 + slack) if name == "memory" else min(after) >= before + 3:
            found.append(f"{name} from {before} to {max(after)}")
    return found


@check(
    option("--rounds", 400),
    option("--clients", 4),
    option("--every", 10, "rounds between two notes"),
    option("--slack", 0.03, "share of memory"),
    option("--pause", 1.0, "seconds between two polls"),
)
def main(options: Options, folder: Path) -> Found:
    """Run the rounds, and note what the servers take and answer."""
    notes: list[list[dict[str, int]]] = [[], []]
    polls: Counter[str] = Counter()
    with LoopbackServers(folder, clients=options.clients) as servers:
        servers.start()
        with polled(servers.metrics_ports, options.pause, polls):
            for number in ordinary_rounds(servers, options.rounds, options.clients):
                if number % options.every == 0:
                    for kept, note in zip(notes, noted(servers, number), strict=True):
                        kept.append(note)
    growth = [grown(kept, options.slack) for kept in notes]
    folder_bytes = [
        round((kept[-1]["folder"] - kept[0]["folder"]) / (kept[-1]["round"] - kept[0]["round"]))
        for kept in notes
    ]
    found: Found = {"rounds": options.rounds, "clients": options.clients, "grown": growth}
    found |= {"folder_bytes_a_round": folder_bytes, "polls": dict(sorted(polls.items()))}
    answered = set(polls) == {f"{page} 200" for page in PAGES}
    return found | {"notes": notes, "ok": answered and not any(growth)}
