"""Faults under load: kills, disks, descriptors, freezes, older and damaged states.

    python -m scripts.checks.faults --faults 300 --json FILE     # goes on where FILE ends
    python -m scripts.checks.faults                              # a taste, each kind twice
    python -m scripts.checks.faults --only kill --faults 200 --rounds 50
    python -m scripts.checks.faults --under loop
    python -m scripts.checks.faults --noise --faults 60               # around the noise steps
    python -m scripts.checks.faults --under systemd --root FOLDER     # as root, see `machines.py`

The program causes every kind of fault (`fault_kinds.KINDS`) at the processes of two servers and of
clients, in every state of a round. This program, the loop of `deploy/` or systemd starts the
servers again. Rounds go on meanwhile. Every fourth round stays open until its time is over, so that
killed clients come back while it is open. Each batch of faults has fresh servers and these checks.
The program adds each batch to FILE, which several of these programs may share:

  - a report that both servers acknowledged is in the aggregate, if the round was opened;
  - the aggregate is exactly that of the accepted clients' updates, so none counts twice;
  - the message of a server in a step of a round never changes, so no round opens twice;
  - the final model equals that of the same reports without faults, at both servers;
  - a round with an acknowledged report ends unopened only if a report log was damaged;
  - with --noise the aggregate is the exact one plus the noise that both servers keep as added, byte
    for byte. Past noise is not lost, and lies in no state folder after its time. No draw serves two
    shares. Faults are kills, freezes and failing writes of servers, before and after a commitment,
    and between the write of the noise and the commitment.
  - servers refuse older states, lost ledgers and damaged models. Both serve again after each fault,
    without a person, except for the faults that the manual leaves to a person.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.checks.fault_kinds import KINDS, PERSON, Faults, asked, round_of
from scripts.checks.fault_noise import AROUND, KINDS_OF_NOISE, SLOT, TERMS, NoiseOnDisk
from scripts.checks.fault_servers import Supervised
from scripts.checks.machines import Booted, need_machine, watch
from scripts.checks.round_clients import Clients, set_up_owner, sums_of
from scripts.program import Found, Options, description, option, program
from torchfsl.errors import ProtocolError
from torchfsl.service.client.owner import Owner
from torchfsl.service.state.steps import OPEN_STATES
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel

BAD: Final = (
    *("wrong_sums", "lost_reports", "steps_changed", "unexplained", "wedged"),
    *("wrongly_accepted", "needed_a_person", "noise_left", "noise_lost", "draws_shared"),
)
"""Findings that must stay empty."""
NUM_CLIENTS: Final = 3
_COUNTS: Final = ("rounds", "rounds_opened", "reports_accepted", "models_equal")
_STATES: Final = [s for s in OPEN_STATES if s != "counted"]  # of plans that open counts first

Hits = collections.Counter[str]
"""Faults by kind and state, as `kind: state`."""


class Chaos:
    """Does one fault after the other in a thread, each in the state that had fewest of its kind."""

    def __init__(
        self, faults: Faults, kinds: Sequence[str], wanted: int, hit: Hits, seconds: float = 3.0,
        noise: NoiseOnDisk | None = None,
    ) -> None:  # fmt: skip
        self.faults, self.kinds, self.wanted, self.hit = faults, kinds, wanted, hit
        self.noise, self.seconds = noise, seconds if noise is None else 10 * seconds
        self.states: Sequence[str] = _STATES if noise is None else AROUND
        self.did: Hits = collections.Counter()
        self.first: dict[tuple[int, int, str], str] = {}
        self.changed: list[tuple[int, int, str]] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.error = ""

    def _run(self) -> None:
        try:
            for _ in range(self.wanted):
                self._do_next()
        except (Exception, SystemExit) as error:
            self.error = f"{type(error).__name__}: {error}"
            print(self.error, file=sys.stderr, flush=True)

    def _do_next(self) -> None:
        draw = self.faults.random
        party = draw.randrange(2)
        by_kind = collections.Counter(dict.fromkeys(self.kinds, 0))
        for name, count in self.hit.items():
            by_kind[name.split(": ")[0]] += count
        kind = min(self.kinds, key=lambda name: (by_kind[name], draw.random()))
        target = min(self.states, key=lambda s: (self.hit[f"{kind}: {s}"], draw.random()))
        met = self._meet(target, party)
        print(f"{time.strftime('%X')} {kind} at server {party}, {met}", file=sys.stderr, flush=True)
        self.faults.do(kind, party)
        self.hit[f"{kind}: {met if met in (*_STATES, SLOT) else 'between rounds'}"] += 1
        self.did[kind] += 1
        for server in (0, 1):
            self._look(server)

    def _meet(self, target: str, party: int) -> str:
        """Wait for a state of a server's round; the one that it is in then."""
        state, limit = self.faults.servers.state(party), time.monotonic() + self.seconds
        if target == SLOT and self.noise is not None:
            if self.noise.caught(party, self.faults, self.seconds):
                return SLOT
            limit = 0.0
        while round_of(state)[1] != target and time.monotonic() < limit:
            time.sleep(0.001)
        return round_of(state)[1]

    def _look(self, party: int) -> None:
        """Whether a server has changed a message that it sent in a step."""
        query = "SELECT round, kind, body FROM steps WHERE sent = 1"
        for number, kind, body in asked(self.faults.servers.state(party), query):
            digest = hashlib.sha256(body).hexdigest()
            if self.first.setdefault((party, number, kind), digest) != digest:
                self.changed.append((party, number, kind))
        if self.noise is not None:
            self.noise.look(party)


def run_batch(
    servers: Supervised,
    wanted: int,
    seed: int,
    hit: Hits,
    kinds: Sequence[str] = KINDS,
    rounds: int = 0,
    noise: bool = False,
    slow: int = 1,
) -> Found:
    """So many faults, and so many rounds at least, on fresh servers; what was found."""
    clients = Clients(servers, _people(noise), seed)
    faults = Faults(servers, clients, seed)
    try:
        found = watch(servers) if isinstance(servers, Booted) else {}
        servers.start()
        owner, task, state = set_up_owner(servers, 1.0, **(TERMS if noise else {}))
        on_disk = NoiseOnDisk(servers, task.plan)
        model = ServerModel(state)
        clients.start()
        chaos = Chaos(faults, kinds, wanted, hit, 3.0 * slow, on_disk if noise else None)
        chaos.thread.start()
        accepted: dict[int, tuple[int, ...]] = {}
        wrong: list[int] = []
        number = 0
        while chaos.thread.is_alive() or not accepted or number < rounds:
            stays = number % 4 == 3  # it waits for one client more than there are
            opened = play(owner, number, NUM_CLIENTS + stays, slow * (4.0 if stays else 12.0))
            if opened is not None:
                accepted[number] = opened.clients
                sums = sums_of(task.plan, seed, number, opened.clients)
                sums = on_disk.add_to(sums) if noise else sums
                same = all(np.array_equal(opened.sums[n], s) for n, s in sums.sums.items())
                wrong += [] if same else [number]
                model.apply(task.plan, sums)
            number += 1
        chaos.thread.join()
        clients.kill()
        digests = {owner.links.info(party)["model"]["digest"] for party in (0, 1)}
        equal = owner.model(task).digest() == model.digest() and digests == {model.digest().hex()}
        owner.close()
        return found | {
            "faults": dict(chaos.did),
            "rounds": number,
            "rounds_opened": len(accepted),
            "reports_accepted": sum(map(len, accepted.values())),
            "models_equal": int(equal and not chaos.error),
            "statuses": {kind: dict(ends) for kind, ends in faults.statuses.items()},
            "by_person": dict(faults.by_person),
            "seconds": {kind: round(value, 1) for kind, value in faults.seconds.items()},
            "mounted": faults.mounted,
            "wrong_sums": wrong,
            "lost_reports": find_lost(clients, accepted),
            "steps_changed": chaos.changed,
            "unexplained": _unexplained(servers, clients),
            "wedged": faults.wedged,
            "wrongly_accepted": faults.accepted,
            "needed_a_person": sorted(set(faults.by_person) - set(PERSON)),
            "noise_left": on_disk.left(),
            "noise_lost": on_disk.lost(),
            "draws_shared": on_disk.shared(),
        }
    finally:
        servers.stop()
        faults.unmount()


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


def find_lost(clients: Clients, accepted: dict[int, tuple[int, ...]]) -> list[tuple[int, int]]:
    """Reports acknowledged by both servers that are in no sum although their round was opened."""
    return [
        (number, client)
        for client in range(len(clients.processes))
        for number in clients.acknowledged(client)
        if number in accepted and client not in accepted[number]
    ]


def _unexplained(servers: Supervised, clients: Clients) -> list[str]:
    """Rounds that ended unopened though somebody's report was acknowledged and no log damaged."""
    query = "SELECT number, reason FROM rounds WHERE state = 'unopened'"
    people = range(len(clients.processes))
    counted = {number for client in people for number in clients.acknowledged(client)}
    return [
        f"round {number}: {reason}"
        for number, reason in asked(servers.state(0), query)
        if number in counted and "damaged" not in str(reason)
    ]


# --- batches in a file ---


def add(path: Path | None, total: Found, found: Found, hit: Hits) -> Found:
    """Add a batch to the file, or where there is none to `total`; all batches together."""
    with contextlib.ExitStack() as stack:
        if path is not None:  # others may have added to it
            lock = stack.enter_context(path.with_name(path.name + ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            total = read(path) if path.exists() else total
        total["batches"] += 1
        for name in (*_COUNTS, *BAD):
            total[name] += found[name]
        for name, more in (("faults", found["faults"]), ("states_hit", hit)):
            _add_counts(total[name], more)
        _add_counts(total["by_person"], found["by_person"])
        for kind, statuses in found["statuses"].items():
            _add_counts(total["statuses"].setdefault(kind, {}), statuses)
        for kind, seconds in found["seconds"].items():
            total["seconds"][kind] = max(seconds, total["seconds"].get(kind, 0.0))
        total |= {name: found[name] for name in ("mounted", "watch") if name in found}
        if path is not None:
            path.write_text(json.dumps(total, indent=2) + "\n")
    return total


def read(path: Path | None) -> Found:
    """Results of all batches in the file so far; zeros if there is no file."""
    if path is not None and path.exists():
        found: Found = json.loads(path.read_text())
        return found
    total: Found = description(__name__, sys.argv[1:]) | {"batches": 0} | dict.fromkeys(_COUNTS, 0)
    for name in ("faults", "states_hit", "statuses", "by_person", "seconds"):
        total[name] = {}
    return total | {name: [] for name in BAD}


def _add_counts(total: dict[str, int], more: dict[Any, int]) -> None:
    for name, count in more.items():
        total[str(name)] = total.get(str(name), 0) + count


def is_good(found: Found) -> bool:
    """Whether nothing is wrong in one batch or in all of a file."""
    return not any(found[name] for name in BAD) and found["models_equal"] == found.get("batches", 1)


def _people(noise: bool) -> int:
    """Clients; with noise each may report in every second round, so there are twice as many."""
    return NUM_CLIENTS * (1 + noise)


def _servers(options: Options, folder: Path) -> Supervised:
    clients = _people(options.noise)
    if options.under == "systemd":
        return Booted(folder / "run", options.root, clients=clients)
    return Supervised(folder, clients=clients, under=options.under)


@program(
    option("--under", "process", choices=("process", "loop", "systemd")),
    option(
        "--only",
        nargs="+",
        metavar="KIND",
        about="beginnings of the names of kinds to run (default: all)",
    ),
    option("--faults", 2 * len(KINDS), "least number of faults (default: each kind twice)"),
    option("--rounds", 0, "least number of rounds in each batch"),
    option("--noise", False, "a plan with correlated noise, and faults around its steps"),
    option("--batch", 2 * len(KINDS), "faults on one pair of servers"),
    option("--slow", 1, "how many times longer rounds take than on an idle machine"),
    option("--seed", 0),
    option(
        "--root", Path, "folder of a Debian for --under systemd, which is made if it is missing"
    ),
)
def main(options: Options) -> int:
    """Run batches until there were enough faults; exit status 1 if anything is wrong."""
    usual = KINDS_OF_NOISE if options.noise else KINDS
    kinds = [kind for kind in usual if kind.startswith(tuple(options.only or [""]))]
    if options.under == "systemd":
        need_machine(options.root)
    total = read(options.json)
    while (missing := options.faults - sum(total["faults"].values())) > 0:
        before: Hits = collections.Counter(total["states_hit"])
        hit = collections.Counter(before)
        seed = options.seed * 1000 + total["batches"]
        wanted = min(options.batch, missing)
        with tempfile.TemporaryDirectory() as folder, _servers(options, Path(folder)) as servers:
            found = run_batch(
                servers, wanted, seed, hit, kinds, options.rounds, options.noise, options.slow
            )
        print(json.dumps(found), flush=True)
        total = add(options.json, total, found, hit - before)
        if not is_good(found):
            break
    print(json.dumps(total, indent=2))
    return int(not is_good(total))
