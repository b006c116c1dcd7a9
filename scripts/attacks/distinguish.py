"""Simple distinguishers on one server's view of a client: what it selected, which bins it filled.

    python -m scripts.attacks.distinguish                     # 10,000 trials of each
    python -m scripts.attacks.distinguish --trials 2000 --time-trials 0 --json distinguish.json

Three secrets: the selected position of a tree, from one server's key; occupied or dummy bins, by
bytes; full or empty reports, by the time that a server takes. For the first, a distinguisher
guesses every bit of the position, and an exact binomial test counts right guesses. For the others
it computes a number for each bin or report, and a rank-sum test compares the two groups. All p are
two-sided. No distinguisher may find anything in what our client sends (p > 1e-4 each; 37
of them go wrong by chance in one run of 270), and each planted fault must be found (p < 1e-9):

    unmasked control bits     the corrections carry the position's bits without the parties' bits
    32-bit masks              one party's seeds hide only 32 bits of every correction word
    dummies without hints     dummy bins carry zeros for a hint
    dummies at position 0     together with either of the first two
    empty bins are skipped    client and server leave out zero hints

Dummies at position 0 alone show nothing to one server: its view of a tree does not depend on the
position, whatever that is. They show as soon as anything leaks positions, passively (the first two
faults) or actively (an altered correction word, `tests/security/test_malicious_server.py`), which
is why dummies have random positions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from scripts.attacks.planted_faults import planted
from scripts.attacks.server_view import DEPTH, FEATURES, GUESSES, make_plan, observe
from scripts.attacks.significance import binomial_p, rank_sum_p
from scripts.parties import Outbox, two_servers
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels.backends import kernels
from torchfsl.submodel.update import SegmentUpdate

OURS_MIN_P, PLANTED_MAX_P = 1e-4, 1e-9


def try_bytes(trials: int, seed: int, party: int) -> dict[str, float]:
    """The p of every distinguisher of positions and of occupied bins, over `trials` trees."""
    rng = np.random.default_rng(seed)
    views = [observe(rng, party) for _ in range(-(-trials // 50))]
    found: dict[str, float] = {}
    occupied = np.concatenate([view.occupied for view in views])
    for name, guess in GUESSES.items():
        apart = [(guess(view) ^ view.position)[view.occupied] for view in views]
        bits = np.concatenate(apart)[:, None] >> np.arange(DEPTH, dtype=np.uint64) & np.uint64(1)
        found[f"position: {name}"] = binomial_p(int((bits == 0).sum()), bits.size)
    for name, feature in FEATURES.items():
        values = np.concatenate([feature(view) for view in views]).astype(np.float64)
        found[f"occupied: {name}"] = rank_sum_p(values, occupied)
    return found


STEPS = ("answer", "fold", "share")


def try_time(trials: int, seed: int) -> dict[str, float]:
    """The p of one server's time for full and for empty reports, in random order, by step."""
    m, k_max = 96, 12
    plan = make_plan(m, k_max, retrieve=True)
    state = {"rows": np.random.default_rng(0).normal(size=(m, 1)).astype(np.float32)}
    servers = two_servers(plan, state)
    rng = np.random.default_rng(seed)
    labels, seconds = rng.random(trials) < 0.5, np.zeros((trials, len(STEPS)))
    sent = []
    for number, is_full in enumerate(labels):
        rows = np.sort(rng.choice(m, size=k_max if is_full else 0, replace=False))
        values = rng.integers(1, 1000, size=(len(rows), 1))
        outbox = Outbox()
        client = Client(plan, outbox, client_id=number % 2)
        client.start_round(number, indices={"rows": rows}).submit(
            {"rows": SegmentUpdate(rows, values)}
        )
        sent.append(outbox.sent)
    # Only now the servers: a client's work just before theirs would leave traces in the caches.
    link = InProcess(*servers)
    for number in range(trials):
        begin_round(servers, number)
        for party, message in sent[number]:
            link.send(party, message)
        seconds[number] = _times(servers, number, number % 2)
    return {
        f"full or empty: time of the {step}": rank_sum_p(seconds[:, i], labels)
        for i, step in enumerate(STEPS)
    }


def _times(servers: tuple[Server, Server], number: int, client: int) -> list[float]:
    first, second = servers
    clock = [time.perf_counter()]
    first.reply(Kind.ANSWER, number, client)
    clock.append(time.perf_counter())
    lists = first.close_round(), second.close_round()
    clock.append(time.perf_counter())
    folds = first.agree(lists[1])
    clock.append(time.perf_counter())
    first.verify(second.agree(lists[0]))
    clock.append(time.perf_counter())
    first.commit()
    clock.append(time.perf_counter())
    second.verify(folds)
    for server in servers:
        server.abandon_round()
    return [clock[i + 1] - clock[i] for i in (0, 2, 4)]


# --- the command ----------------------------------------------------------------------------------

PLANTED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("unmasked control bits",): (
        "position: right control words",
        "position: left control words",
    ),
    ("32-bit masks",): ("position: own seeds",),
    ("dummies without hints",): ("occupied: size of the hint", "occupied: zero bytes"),
    ("dummies at position 0", "unmasked control bits"): (
        "occupied: position by right control words",
    ),
    ("dummies at position 0", "32-bit masks"): ("occupied: position by own seeds",),
}
SLOW = ("empty bins are skipped",)


def run(trials: int, time_trials: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """All p-values: on ours, and of the distinguishers meant for each planted fault."""
    ours = {f"{name} (server {p})": v for p in (0, 1)
            for name, v in try_bytes(trials, seed + p, p).items()}  # fmt: skip
    faulty: dict[str, float] = {}
    for faults, names in PLANTED.items():
        with planted(*faults):
            found = try_bytes(trials, seed, 0)
        faulty |= {f"{' + '.join(faults)}: {name}": found[name] for name in names}
    if time_trials:
        ours |= try_time(time_trials, seed)
        with planted(*SLOW):
            found = try_time(time_trials, seed)
        name = "full or empty: time of the share"
        faulty |= {f"{SLOW[0]}: {name}": found[name]}
    return ours, faulty


def main(arguments: list[str] | None = None) -> int:
    """Print all p-values; 1 if ours shows something or a planted fault does not."""
    parser = argparse.ArgumentParser(description="distinguishers on one server's view")
    parser.add_argument("--trials", type=int, default=10_000, help="occupied trees a test")
    parser.add_argument("--time-trials", type=int, default=10_000, help="reports timed")
    parser.add_argument("--seed", type=int, default=0, help="of rows and values; keys are secret")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TORCHFSL_THREADS", "1")
    kernels()
    ours, faulty = run(options.trials, options.time_trials, options.seed)
    for title, table in (("ours", ours), ("planted faults", faulty)):
        print(f"{title}:")
        for name, p in table.items():
            print(f"  {name:75} p = {p:.3g}")
    good = min(ours.values()) > OURS_MIN_P and max(faulty.values()) < PLANTED_MAX_P
    if options.json:
        options.json.write_text(json.dumps({"ours": ours, "planted": faulty}, indent=2) + "\n")
    print("nothing found in ours, every planted fault found" if good else "NOT as it must be")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
