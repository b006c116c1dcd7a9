"""Kill servers and clients with SIGKILL at random moments, and check that nothing is lost.

    python -m scripts.checks.crash                       # 200 kills over 50 rounds, a few minutes
    python -m scripts.checks.crash --rounds 4 --kills 8  # a taste

Two server processes and several client processes run rounds while a killer picks a victim, waits
until it is in the round state that was hit least so far, and kills it; it is started again at once.
Half of the clients are killed as soon as both servers have acknowledged their report, and every
fourth round stays open until its time is over, so that they come back while it is open.
Every client's update is a function of (seed, round, client). Checked, round by round:

  - a report that both servers acknowledged is in the opened sum (if the round was opened);
  - the opened sum is exactly that of the accepted clients' updates, so none counts twice;
  - what a server says in a step of a round never changes, so no round opens twice;
  - the final model equals that of the same accepted reports without any crash, at both servers.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import multiprocessing
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.checks.crash_clients import POLICY, acknowledged_rounds, make_plan, run_client, sums_of
from torchfsl.errors import ProtocolError
from torchfsl.service.client.owner import Owner
from torchfsl.service.local import LoopbackServers
from torchfsl.service.state.steps import OPEN_STATES
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel

# --- the killer ---


class Killer:
    """Kills and starts again, until told to stop."""

    def __init__(self, servers: LoopbackServers, seed: int, clients: int, wanted: int) -> None:
        """Nobody is dead yet."""
        self.servers, self.seed, self.wanted = servers, seed, wanted
        self.random = random.Random(seed)
        self.kills: collections.Counter[str] = collections.Counter()
        self.hit: collections.Counter[str] = collections.Counter(dict.fromkeys(OPEN_STATES, 0))
        self.said: dict[tuple[int, str, int], str] = {}
        self.changed: list[tuple[int, str, int]] = []
        self.done = threading.Event()
        self.context = multiprocessing.get_context("spawn")
        self.clients: list[Any] = [None] * clients
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start_client(self, client: int) -> None:
        """Start a client process."""
        servers = self.servers
        process = self.context.Process(
            target=run_client,
            args=(servers.urls, servers.tls, servers.folder, client, self.seed),
            daemon=True,
        )
        process.start()
        self.clients[client] = process

    def _run(self) -> None:
        while not self.done.is_set() and sum(self.kills.values()) < self.wanted:
            if self.random.random() < 0.25:
                self._kill_client(self.random.randrange(len(self.clients)))
            else:
                self._kill_server(self.random.randrange(2))
            self.done.wait(self.random.random() * 0.3)

    def _kill_client(self, client: int) -> None:
        after = self.random.random() < 0.5 and self._acknowledged(client)
        if not after:
            self.done.wait(self.random.random() * 0.5)
        self.clients[client].kill()
        self.clients[client].join()
        self.kills["client in an open round, report acknowledged" if after else "client"] += 1
        self.start_client(client)

    def _acknowledged(self, client: int) -> bool:
        """Wait until the client's report of an open round is acknowledged, for a while."""
        limit = time.monotonic() + 8.0
        with self._database(0) as database:
            while not self.done.is_set() and time.monotonic() < limit:
                rounds = acknowledged_rounds(self.servers.folder, client)
                number, state = self._round(database)
                if state == "open" and number in rounds:
                    return True
                time.sleep(0.005)
        return False

    def _kill_server(self, party: int) -> None:
        target = min(OPEN_STATES, key=lambda state: (self.hit[state], self.random.random()))
        limit = time.monotonic() + 8.0
        with self._database(party) as database:
            while not self.done.is_set() and time.monotonic() < limit:
                if self._round(database)[1] == target:
                    break
                time.sleep(0.001)
        if target in ("open", "closed"):
            time.sleep(self.random.random() * 0.1)
        self.servers.kill(party)
        self._look(party)
        self.kills[f"server {party}"] += 1
        self.servers.start(party)

    def _database(self, party: int) -> contextlib.closing[sqlite3.Connection]:
        path = f"file:{self.servers.state(party)}/state.sqlite?mode=ro"
        return contextlib.closing(sqlite3.connect(path, uri=True, check_same_thread=False))

    def _round(self, database: sqlite3.Connection) -> tuple[int, str]:
        """Number and state of a server's last round."""
        query = "SELECT number, state FROM rounds ORDER BY number DESC LIMIT 1"
        try:
            row = database.execute(query).fetchone()
        except sqlite3.Error:
            return -1, ""
        return (int(row[0]), str(row[1])) if row else (-1, "")

    def _look(self, party: int) -> None:
        """Read a dead server's disk: its state, and whether it changed what it had said."""
        with contextlib.closing(
            sqlite3.connect(f"{self.servers.state(party)}/state.sqlite")
        ) as database:
            self.hit[self._round(database)[1]] += 1
            for number, kind, body in database.execute(
                "SELECT round, kind, body FROM steps WHERE sent = 1"
            ):
                digest = hashlib.sha256(body).hexdigest()
                if self.said.setdefault((party, number, kind), digest) != digest:
                    self.changed.append((party, number, kind))


# --- the rounds ---


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds under fire; what was found."""
    config = "[storage]\nreserve_bytes = 1048576\nsegment_bytes = 1048576\n"
    with LoopbackServers(folder, clients=options.clients, config=config) as servers:
        servers.start()
        owner = Owner(servers.urls, servers.tls, policy=POLICY)
        task = owner.bind(make_plan())
        plan = task.plan
        state = {t.name: np.ones(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
        owner.set_up(task, state)
        model = ServerModel(state)
        killer = Killer(servers, options.seed, options.clients, options.kills)
        for client in range(options.clients):
            killer.start_client(client)
        killer.thread.start()
        accepted: dict[int, tuple[int, ...]] = {}
        wrong: list[int] = []
        number = 0
        while number < options.rounds or killer.thread.is_alive():
            expected = options.clients + (number % 4 == 3)  # one more than there are: it stays open
            opened = play(owner, number, expected, options.round_seconds)
            if opened is not None:
                accepted[number] = opened.clients
                wanted = sums_of(plan, options.seed, number, opened.clients)
                same = all(np.array_equal(opened.sums[n], s) for n, s in wanted.sums.items())
                wrong += [] if same else [number]
                model.apply(plan, wanted)
            number += 1
        killer.done.set()
        killer.thread.join()
        for process in killer.clients:
            process.kill()
            process.join()
        final = owner.model(task).digest()
        digests = [owner.links.info(party)["model"]["digest"] for party in (0, 1)]
        owner.close()
    lost = find_lost(folder, options.clients, accepted)
    return {
        "rounds": number,
        "rounds_opened": len(accepted),
        "reports_accepted": sum(map(len, accepted.values())),
        "kills": dict(killer.kills),
        "states_hit": dict(killer.hit),
        "wrong_sums": wrong,
        "lost_reports": lost,
        "steps_changed": killer.changed,
        "model_equal": final == model.digest() and set(digests) == {final.hex()},
    }


def play(owner: Owner, number: int, expected: int, seconds: float) -> Opened | None:
    """One round; None if it ended unopened."""
    with contextlib.suppress(ProtocolError):  # it may have ended before the answer came
        owner.open_round(number, expected=expected, seconds=seconds)
    deadline = time.monotonic() + 600
    while True:
        row = owner.links.info(0)
        if row["round"] == number and row["state"] in ("applied", "unopened"):
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"round {number} hangs: {row}")
        time.sleep(0.05)
    if row["state"] == "unopened":
        return None
    opened, of_round = owner.result()
    assert of_round == number
    return opened


def find_lost(
    folder: Path, clients: int, accepted: dict[int, tuple[int, ...]]
) -> list[tuple[int, int]]:
    """Reports acknowledged by both servers that are in no sum although their round was opened."""
    lost = []
    for client in range(clients):
        rounds = acknowledged_rounds(folder, client)
        lost += [(r, client) for r in rounds if r in accepted and client not in accepted[r]]
    return lost


def main() -> int:
    """Run the test; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50, help="at least so many (default 50)")
    parser.add_argument("--kills", type=int, default=200, help="at least so many (default 200)")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=6.0, help="longest wait for reports")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep states and logs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    start = time.perf_counter()
    folder = options.keep or Path(tempfile.mkdtemp())
    found = run(options, folder)
    if options.keep is None:
        shutil.rmtree(folder)
    found["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    wrong = found["wrong_sums"] or found["lost_reports"] or found["steps_changed"]
    return int(bool(wrong) or not found["model_equal"])


if __name__ == "__main__":
    sys.exit(main())
