"""Faults without the process dying first: disks, descriptors, freezes, older and damaged states.

    python -m scripts.checks.chaos --faults 300 --json FILE   # goes on where FILE ends
    python -m scripts.checks.chaos --faults 14                # a taste, one of each kind

`crash.py` kills; this one does to two server processes under load whatever else goes wrong
(`chaos_faults.KINDS`), in every state of a round, and starts again what has ended, as a supervisor
does. States that must be refused have to be: the newest one is put back then, which is what a
person does. Rounds go on meanwhile, in batches of `--batch` faults on fresh servers; each batch
checks, and is added to FILE, which several of these programs may share:

  - a report that both servers acknowledged is in the opened sum, if the round was opened;
  - the opened sum is exactly that of the accepted clients' updates, so none counts twice;
  - what a server says in a step of a round never changes, so no round opens twice;
  - the final model equals that of the same reports without faults, at both servers;
  - a round with an acknowledged report ends unopened only where a report log was damaged;
  - older states, lost ledgers and damaged models are refused; both serve again after each fault.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import fcntl
import hashlib
import json
import multiprocessing
import os
import platform
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.checks.chaos_faults import KINDS, Faults, round_of
from scripts.checks.crash import find_lost, play
from scripts.checks.crash_clients import POLICY, acknowledged_rounds, make_plan, run_client, sums_of
from torchfsl.service.client.owner import Owner
from torchfsl.service.local import LoopbackServers
from torchfsl.service.state.steps import OPEN_STATES
from torchfsl.submodel.server_model import ServerModel

BAD = ("wrong_sums", "lost_reports", "steps_changed", "unexplained", "wedged", "wrongly_accepted")
"""What must stay empty."""

CONFIG = "[storage]\nreserve_bytes = 1048576\nsegment_bytes = 65536\n"
"""Of the servers: their disks are small."""

_STATES = [state for state in OPEN_STATES if state != "counted"]  # of plans that open counts first


class Chaos:
    """Does one fault after the other in a thread, each in the state that had fewest of its kind."""

    def __init__(self, faults: Faults, wanted: int, hit: collections.Counter[str]) -> None:
        """Nothing is broken yet; `hit` counts faults of earlier batches, as `kind, state`."""
        self.faults, self.wanted, self.hit = faults, wanted, hit
        self.did: collections.Counter[str] = collections.Counter()
        self.said: dict[tuple[int, str, int], str] = {}
        self.changed: list[tuple[int, str, int]] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.error = ""

    def _run(self) -> None:
        try:
            for _ in range(self.wanted):
                self._one()
        except SystemExit as error:
            self.error = str(error)
            print(self.error, file=sys.stderr, flush=True)

    def _one(self) -> None:
        draw = self.faults.random
        party = draw.randrange(2)
        by_kind = collections.Counter(dict.fromkeys(KINDS, 0))
        for name, count in self.hit.items():
            by_kind[name.split(": ")[0]] += count
        kind = min(KINDS, key=lambda name: (by_kind[name], draw.random()))
        target = min(_STATES, key=lambda s: (self.hit[f"{kind}: {s}"], draw.random()))
        state = self.faults.servers.state(party)
        limit = time.monotonic() + 3.0
        while round_of(state)[1] != target and time.monotonic() < limit:
            time.sleep(0.005)
        met = round_of(state)[1]
        print(f"{time.strftime('%X')} {kind} at server {party}, {met}", file=sys.stderr, flush=True)
        self.faults.do(kind, party)
        self.hit[f"{kind}: {met if met in _STATES else 'between rounds'}"] += 1
        self.did[kind] += 1
        for one in (0, 1):
            self._look(one)

    def _look(self, party: int) -> None:
        """Whether a server has changed what it had said in a step."""
        path = f"file:{self.faults.servers.state(party)}/state.sqlite?mode=ro"
        query = "SELECT round, kind, body FROM steps WHERE sent = 1"
        with contextlib.suppress(sqlite3.Error):
            with contextlib.closing(sqlite3.connect(path, uri=True)) as database:
                found = database.execute(query).fetchall()
            for number, kind, body in found:
                digest = hashlib.sha256(body).hexdigest()
                if self.said.setdefault((party, number, kind), digest) != digest:
                    self.changed.append((party, number, kind))


def run_batch(
    folder: Path, wanted: int, seed: int, hit: collections.Counter[str], clients: int = 3
) -> dict[str, Any]:
    """So many faults on fresh servers; what was found."""
    with LoopbackServers(folder, clients=clients, config=CONFIG) as servers:
        faults = Faults(servers, seed)
        try:
            return run_rounds(servers, faults, wanted, seed, hit, clients)
        finally:
            servers.stop()
            faults.unmount()


def run_rounds(
    servers: LoopbackServers, faults: Faults, wanted: int, seed: int,
    hit: collections.Counter[str], clients: int,
) -> dict[str, Any]:  # fmt: skip
    """The same at servers and with faults that are given."""
    servers.start()
    owner = Owner(servers.urls, servers.tls, policy=POLICY)
    task = owner.bind(make_plan())
    plan = task.plan
    state = {t.name: np.ones(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
    owner.set_up(task, state)
    model = ServerModel(state)
    context = multiprocessing.get_context("spawn")
    arguments = (servers.urls, servers.tls, servers.folder)
    people = [
        context.Process(target=run_client, args=(*arguments, number, seed), daemon=True)
        for number in range(clients)
    ]
    for process in people:
        process.start()
    chaos = Chaos(faults, wanted, hit)
    chaos.thread.start()
    accepted: dict[int, tuple[int, ...]] = {}
    wrong: list[int] = []
    number = 0
    while chaos.thread.is_alive() or not accepted:
        stays = number % 4 == 3  # open until its time is over: it waits for one more than there are
        opened = play(owner, number, clients + stays, 4.0 if stays else 12.0)
        if opened is not None:
            accepted[number] = opened.clients
            sums = sums_of(plan, seed, number, opened.clients)
            same = all(np.array_equal(opened.sums[n], s) for n, s in sums.sums.items())
            wrong += [] if same else [number]
            model.apply(plan, sums)
        number += 1
    chaos.thread.join()
    for process in people:
        process.kill()
        process.join()
    equal = not chaos.error and owner.model(task).digest() == model.digest()
    owner.close()
    return {
        "faults": dict(chaos.did),
        "rounds": number,
        "rounds_opened": len(accepted),
        "reports_accepted": sum(map(len, accepted.values())),
        "statuses": {kind: dict(found) for kind, found in faults.statuses.items()},
        "mounted": faults.mounted,
        "wrong_sums": wrong,
        "lost_reports": find_lost(servers.folder, clients, accepted),
        "steps_changed": chaos.changed,
        "unexplained": _unexplained(servers, clients),
        "wedged": faults.wedged,
        "wrongly_accepted": faults.accepted,
        "model_equal": equal,
    }


def _unexplained(servers: LoopbackServers, clients: int) -> list[str]:
    """Rounds that ended unopened though somebody's report was acknowledged and no log damaged."""
    path = f"file:{servers.state(0)}/state.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True)) as database:
        query = "SELECT number, reason FROM rounds WHERE state = 'unopened'"
        reasons = {int(row[0]): str(row[1]) for row in database.execute(query)}
    counted = {r for c in range(clients) for r in acknowledged_rounds(servers.folder, c)}
    return [
        f"round {r}: {why}" for r, why in reasons.items() if r in counted and "damaged" not in why
    ]


# --- batches in a file ---


def add(
    path: Path | None, total: dict[str, Any], found: dict[str, Any], hit: collections.Counter[str]
) -> dict[str, Any]:
    """Add a batch to the file, or where there is none to `total`; all batches together."""
    with contextlib.ExitStack() as stack:
        if path is not None:  # others may have added to it
            lock = stack.enter_context(path.with_name(path.name + ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            total = read(path)
        total["batches"] += 1
        for name in ("rounds", "rounds_opened", "reports_accepted"):
            total[name] += found[name]
        for name in BAD:
            total[name] += found[name]
        total["models_equal"] += found["model_equal"]
        _add_counts(total["faults"], found["faults"])
        _add_counts(total["states_hit"], hit)
        for kind, statuses in found["statuses"].items():
            _add_counts(total["statuses"].setdefault(kind, {}), statuses)
        total["mounted"] = found["mounted"]
        if path is not None:
            path.write_text(json.dumps(total, indent=2) + "\n")
    return total


def read(path: Path | None) -> dict[str, Any]:
    """What the file holds so far."""
    if path is not None and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    about = {
        "command": "python -m scripts.checks.chaos --faults 300",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    counts = dict.fromkeys(("batches", "rounds", "rounds_opened", "reports_accepted"), 0)
    bad: dict[str, Any] = {name: [] for name in BAD}
    return {
        **about, **counts, "models_equal": 0, "faults": {}, "states_hit": {}, "statuses": {}, **bad
    }  # fmt: skip


def _add_counts(total: dict[str, int], more: dict[Any, int]) -> None:
    for name, count in more.items():
        total[str(name)] = total.get(str(name), 0) + count


def main() -> int:
    """Run batches until there were enough faults; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300, help="at least so many (default 300)")
    parser.add_argument("--batch", type=int, default=28, help="faults on one pair of servers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, to go on with")
    options = parser.parse_args()
    total = read(options.json)
    while (missing := options.faults - sum(total["faults"].values())) > 0:
        before = collections.Counter(total["states_hit"])
        hit = collections.Counter(before)
        seed = options.seed * 1000 + total["batches"]
        with tempfile.TemporaryDirectory() as folder:
            found = run_batch(Path(folder), min(options.batch, missing), seed, hit)
        print(json.dumps(found), flush=True)
        total = add(options.json, total, found, hit - before)
        if any(found[name] for name in BAD) or not found["model_equal"]:
            break
    print(json.dumps(total, indent=2))
    return int(any(total[name] for name in BAD) or total["models_equal"] != total["batches"])


if __name__ == "__main__":
    sys.exit(main())
