"""Simple distinguishers of selected positions and filled bins, on one server's view.

    python -m scripts.attacks.distinguish                     # 10,000 trials of each
    python -m scripts.attacks.distinguish --trials 2000 --time-trials 0 --json distinguish.json

There are three secrets. The first is the selected position of a tree, by one server's key. The
second is which bins are occupied and which are dummies, by their bytes. The third is which reports
are full and which are empty, by the time that a server takes.

For the first secret, a distinguisher guesses every bit of the position, and an exact binomial test
counts right guesses. For the other two, it computes a number for each bin or report, and a rank-sum
test compares the two groups. All p are two-sided.

No distinguisher may find anything in what the client of torchfsl sends (p > 1e-4 each). By chance,
one of the 37 distinguishers fails in one run of 270. The distinguishers must find each planted
fault (p < 1e-9):

    unmasked control bits     the corrections carry the position's bits without the parties' bits
    32-bit masks              one party's seeds hide only 32 bits of every correction word
    dummies without hints     dummy bins carry zeros for a hint
    dummies at position 0     together with either of the first two
    empty bins are skipped    client and server leave out zero hints

Dummies at position 0 alone show nothing to one server, because its view of a tree does not depend
on the position. As soon as anything leaks positions, such dummies show, so dummies have random
positions. The first two faults are passive leaks. An altered correction word
(`tests/security/test_malicious_server.py`) is an active leak.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.parties import Outbox, Stopwatch, plain_plan, two_servers
from scripts.program import Found, Options, option, program
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client import trees as client_trees
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
from torchfsl.kernels import portable, ring
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.kernels.portable.trees import Positions
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Bytes

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]


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


def judged(ours: dict[str, float], planted: dict[str, float], bounds: tuple[float, float]) -> Found:
    """Print all p-values, and judge them.

    Args:
        ours: by distinguisher; each must be above the first bound.
        planted: by planted fault; each must be below the second bound.
        bounds: of both.
    """
    for title, table in (("ours", ours), ("planted faults", planted)):
        print(f"{title}:")
        for name, p in table.items():
            print(f"  {name:75} p = {p:.3g}")
    good = min(ours.values()) > bounds[0] and max(planted.values()) < bounds[1]
    print("nothing found in ours, every planted fault found" if good else "NOT as it must be")
    return {"ours": ours, "planted": planted, "ok": good}


DEPTH = 4


def make_plan(m: int, k_max: int, *, retrieve: bool) -> Plan:
    """One verified segment of m rows of one value in bins of 16."""
    sizes = {"num_bins": 3 * m // 16, "theta": 16, "check_bytes": CHECK_BYTES}
    sizes["tag_bytes"] = TAG_BYTES if retrieve else 0
    tensor = TensorSpec("rows", (m, 1))
    segment = TreeSegment("rows", "rows", (tensor,), m, 1, k_max, retrieve, **sizes)
    return plain_plan(segment, encoding=FixedPoint(32, 0, 1000.0), max_clients=2)


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
    context, seed = trees.context, trees.master_seeds[party]
    keys = context.tree_key(segment), report.convert_key(segment), context.check_key(segment)
    roots = report.roots(segment, seed, party)
    return View(*keys, roots, part, hints, placement.position, occupied)


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
    watch = Stopwatch()
    watch.time("answer", lambda: first.reply(Kind.ANSWER, number, client))
    lists = first.close_round(), second.close_round()
    folds = watch.time("fold", lambda: first.agree(lists[1]))
    first.verify(second.agree(lists[0]))
    watch.time("share", first.commit)
    second.verify(folds)
    for server in servers:
        server.abandon_round()
    return [watch.seconds[step] for step in STEPS]


# --- planted faults: never use them ---


def unmasked_bits(
    key: bytes, roots0: Bytes, roots1: Bytes, alpha: Positions, depth: int, num_threads: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Trees whose control corrections are the bits of alpha themselves."""
    cw, cw_right, leaf0, leaf1 = portable_trees.tree_gen(key, roots0, roots1, alpha, depth)
    for level in range(depth):
        bit = (alpha >> np.uint64(depth - 1 - level) & np.uint64(1)).astype(np.uint8)
        cw[level, :, 0] = (cw[level, :, 0] & 0xFE) | (bit ^ 1)
        cw_right[level] = bit
    return cw, cw_right, leaf0, leaf1


def short_masks(
    key: bytes, roots0: Bytes, roots1: Bytes, alpha: Positions, depth: int, num_threads: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Trees of which party 1's expansion has four bytes: they hide party 0's seeds badly."""
    hashed = portable_trees.mmo_hash
    calls = iter(range(1 << 30))

    def weak(key: bytes, blocks: Bytes) -> Bytes:
        out = hashed(key, blocks).copy()
        if next(calls) % 4 >= 2:  # party 0 left, right, party 1 left, right
            out[..., 4:] = 0
        return out

    with mock.patch.object(portable_trees, "mmo_hash", weak):
        return portable_trees.tree_gen(key, roots0, roots1, alpha, depth)


@contextlib.contextmanager
def planted(*faults: str) -> Iterator[None]:
    """Our client with these faults, on the portable kernels."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"TORCHFSL_BACKEND": "portable"}))
        if "unmasked control bits" in faults:
            stack.enter_context(mock.patch.object(portable, "tree_gen", unmasked_bits))
        if "32-bit masks" in faults:
            stack.enter_context(mock.patch.object(portable, "tree_gen", short_masks))
        if "dummies at position 0" in faults:
            zeros = lambda bound, count: np.zeros(count, dtype=np.uint64)  # noqa: E731
            stack.enter_context(mock.patch.object(client_trees, "random_below", zeros))
        if "dummies without hints" in faults or "empty bins are skipped" in faults:
            stack.enter_context(mock.patch.object(portable, "hint_gen", hints_for_values_only))
        if "empty bins are skipped" in faults:
            stack.enter_context(mock.patch.object(portable, "accumulate", skip_empty))
        yield


def hints_for_values_only(
    key: bytes, leaf0: Bytes, leaf1: Bytes, values: Bytes, *rest: Any
) -> Bytes:
    """Hints that stay zero where there is nothing to carry."""
    hints = portable_trees.hint_gen(key, leaf0, leaf1, values, *rest)
    hints[~np.any(values, axis=1)] = 0
    return hints


def skip_empty(
    tree_key: bytes, convert_key: bytes, roots: Bytes, cw: Bytes, right: Bytes, *rest: Any
) -> None:
    """A server that saves the work for zero hints."""
    num_leaves, hints, party, width, acc, *_ = rest
    used = np.any(hints, axis=1)
    if used.any():
        part, trees = np.ascontiguousarray(acc[used]), (roots[used], cw[:, used], right[:, used])
        portable_trees.accumulate(
            tree_key, convert_key, *trees, num_leaves, hints[used], party, width, part
        )
        acc[used] = part


# --- the command ---

PLANTED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("unmasked control bits",): ("position: right control words", "position: left control words"),
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
    ours = {
        f"{name} (server {party})": p
        for party in (0, 1)
        for name, p in try_bytes(trials, seed + party, party).items()
    }
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


@program(
    option("--trials", 10_000, "occupied trees a test"),
    option("--time-trials", 10_000, "reports timed"),
    option("--seed", 0, "of rows and values; keys are secret"),
)
def main(options: Options) -> Found:
    """Print all p-values; fails if ours shows something or a planted fault does not."""
    os.environ.setdefault("TORCHFSL_THREADS", "1")
    kernels()
    ours, faulty = run(options.trials, options.time_trials, options.seed)
    return judged(ours, faulty, (OURS_MIN_P, PLANTED_MAX_P))
