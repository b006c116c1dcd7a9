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
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scripts.attacks.planted_faults import planted
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import CHECK_BYTES, TAG_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.kernels.portable.trees import Positions
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]

OURS_MIN_P, PLANTED_MAX_P = 1e-4, 1e-9
DEPTH = 4


def make_plan(m: int, k_max: int, *, retrieve: bool) -> Plan:
    """One verified segment of m rows of one value in bins of 16."""
    segment = TreeSegment(
        "rows", "rows", (TensorSpec("rows", (m, 1)),), m, 1, k_max, num_bins=3 * m // 16, theta=16,
        retrieve=retrieve, check_bytes=CHECK_BYTES, tag_bytes=TAG_BYTES if retrieve else 0,
    )  # fmt: skip
    return Plan(
        session="0" * 32, hash_seed="0" * 64, encoding=FixedPoint(32, 0, 1000.0), max_clients=2,
        segments=(segment,), min_clients=1,
    )  # fmt: skip


# --- tests of significance ------------------------------------------------------------------------


def binomial_p(right: int, total: int) -> float:
    """Exact two-sided p of `right` of `total` fair coins."""
    k = np.arange(total + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    logs = log_factorials[-1] - log_factorials[k] - log_factorials[total - k] - total * math.log(2)
    chances = np.exp(logs)
    return float(min(1.0, 2 * min(chances[: right + 1].sum(), chances[right:].sum())))


def rank_sum_p(values: Numbers, labels: Labels) -> float:
    """Two-sided p of the rank-sum test (Mann, Whitney), by the normal law, ties corrected for."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, first = len(values), int(labels.sum())
    second = n - first
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = first * second / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance <= 0:
        return 1.0
    z = (float(ranks[labels].sum()) - first * (n + 1) / 2) / math.sqrt(variance)
    return math.erfc(abs(z) / math.sqrt(2))


# --- one server's view of many trees --------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """T trees of one report at one server, and the secrets to be found."""

    tree_key: bytes
    convert_key: bytes
    check_key: bytes
    roots: Bytes
    part: dpf.Trees
    hints: Bytes
    position: Positions
    occupied: Labels

    def leaves(self) -> Bytes:
        """This server's states at all leaves: `[T, 16, 16]`."""
        words = self.part.cw, self.part.cw_right
        return portable_trees.tree_eval(self.tree_key, self.roots, *words, 1 << DEPTH)

    def children(self, states: Bytes) -> Bytes:
        """Uncorrected children of states `[T, 16]`: `[T, 2, 16]`."""
        zero = np.zeros((1, len(states), 16), np.uint8), np.zeros((1, len(states)), np.uint8)
        return portable_trees.tree_eval(self.tree_key, states, *zero, 2)


def observe(rng: np.random.Generator, party: int) -> View:
    """A real client's trees and hints of one report, half of the bins occupied."""
    plan = make_plan(528, 50, retrieve=False)
    (segment,) = plan.segments
    trees = ClientTrees(plan, 0, 1)
    report = ReportContext(trees.context, 1, random_bytes(16))
    rows = np.sort(rng.choice(528, size=50, replace=False))
    (part,) = trees.grow(segment, rows, report)
    placement, leaves = trees.selection(segment).placement, trees.selection(segment).leaves
    occupied = placement.item >= 0
    values = np.where(occupied, rng.integers(1, 1000, size=len(occupied)), 0)
    carried = ring.from_int64(values[:, None], 32)
    hints = dpf.gen_hints(segment, report.convert_key(segment), leaves, carried)
    return View(
        trees.context.tree_key(segment), report.convert_key(segment),
        trees.context.check_key(segment), report.roots(segment, trees.master_seeds[party], party),
        part, hints, placement.position, occupied,
    )  # fmt: skip


# --- distinguishers -------------------------------------------------------------------------------


def guess_by_right_word(view: View) -> Positions:
    """Read the right control corrections as the bits of the position."""
    return _from_bits(view.part.cw_right)


def guess_by_left_word(view: View) -> Positions:
    """Read the left control corrections as the inverted bits."""
    return _from_bits(portable_trees.bits_of(view.part.cw) ^ 1)


def guess_by_own_bits(view: View) -> Positions:
    """Follow this server's own control bits down the tree."""
    bits = portable_trees.bits_of(view.leaves())
    return np.argmax(bits, axis=1).astype(np.uint64)


def guess_by_own_seeds(view: View) -> Positions:
    """At every level leave the child whose seed resembles the correction word most."""
    states, bits = view.roots, []
    for level in range(DEPTH):
        children = view.children(states)
        resembles = np.count_nonzero(children == view.part.cw[level][:, None], axis=2)
        bit = (resembles[:, 0] >= resembles[:, 1]).astype(np.uint8)
        chosen = portable_trees.mask_of(portable_trees.bits_of(states))
        word = view.part.cw[level].copy()
        right_word = (word[:, 0] & 0xFE) | view.part.cw_right[level]
        word[:, 0] = np.where(bit == 1, right_word, word[:, 0])
        states = children[np.arange(len(states)), bit] ^ (word & chosen)
        bits.append(bit)
    return _from_bits(np.array(bits))


def guess_by_hint(view: View) -> Positions:
    """The leaf where the hint is nearest to this server's own share."""
    leaves = view.leaves()
    shares = portable_trees.convert(view.convert_key, leaves.reshape(-1, 16), 4)
    lanes = shares.reshape(*leaves.shape[:2], 4)
    near = [ring.to_int64(f(view.hints[:, None], lanes)) for f in (ring.add, ring.sub)]
    distance = np.minimum(np.abs(near[0]), np.abs(near[1]))
    return np.argmin(distance, axis=1).astype(np.uint64)


def guess_by_check_word(view: View) -> Positions:
    """The leaf whose own hash is nearest to the check word."""
    leaves = view.leaves()
    trees, numbers = np.divmod(np.arange(leaves.shape[0] << DEPTH), 1 << DEPTH)
    hashes = portable_checks.leaf_hash(view.check_key, leaves.reshape(-1, 16), trees, numbers)
    apart = hashes.reshape(*leaves.shape[:2], -1) ^ view.part.check[:, None]
    return np.argmin(np.unpackbits(apart, axis=2).sum(axis=2), axis=1).astype(np.uint64)


def _from_bits(bits: Bytes) -> Positions:
    position = np.zeros(bits.shape[1], dtype=np.uint64)
    for bit in bits:
        position = position << np.uint64(1) | bit
    return position


GUESSES: dict[str, Callable[[View], Positions]] = {
    "right control words": guess_by_right_word,
    "left control words": guess_by_left_word,
    "own control bits": guess_by_own_bits,
    "own seeds": guess_by_own_seeds,
    "hint": guess_by_hint,
    "check word": guess_by_check_word,
}
FEATURES: dict[str, Callable[[View], npt.NDArray[np.generic]]] = {
    "bits of correction words": lambda v: np.unpackbits(v.part.cw, axis=2).sum(axis=(0, 2)),
    "bits of the hint": lambda v: np.unpackbits(v.hints, axis=1).sum(axis=1),
    "size of the hint": lambda v: np.abs(ring.to_int64(v.hints)),
    "zero bytes": lambda v: np.count_nonzero(np.concatenate([v.hints, v.part.check], 1), axis=1),
    "bits of the check word": lambda v: np.unpackbits(v.part.check, axis=1).sum(axis=1),
    **{f"position by {name}": guess for name, guess in GUESSES.items()},
}


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


class Recorder:
    """A transport that keeps what a client sends, for later delivery."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []

    def send(self, party: int, message: bytes) -> None:
        """Keep it."""
        self.messages.append((party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Nothing is fetched in this experiment."""
        raise NotImplementedError


def try_time(trials: int, seed: int) -> dict[str, float]:
    """The p of one server's time for full and for empty reports, in random order, by step."""
    m, k_max = 96, 12
    plan = make_plan(m, k_max, retrieve=True)
    state = {"rows": np.random.default_rng(0).normal(size=(m, 1)).astype(np.float32)}
    servers = (
        Server(0, plan=plan, model=ServerModel(state)),
        Server(1, plan=plan, model=ServerModel(state)),
    )
    rng = np.random.default_rng(seed)
    labels, seconds = rng.random(trials) < 0.5, np.zeros((trials, len(STEPS)))
    sent = []
    for number, is_full in enumerate(labels):
        rows = np.sort(rng.choice(m, size=k_max if is_full else 0, replace=False))
        values = rng.integers(1, 1000, size=(len(rows), 1))
        recorder = Recorder()
        client = Client(plan, recorder, client_id=number % 2)
        client.start_round(number, indices={"rows": rows}).submit(
            {"rows": SegmentUpdate(rows, values)}
        )
        sent.append(recorder.messages)
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
