"""Bounds the failure of cuckoo placement and writes torchfsl/fsl/cuckoo/bounds_table.json.

    python -m scripts.generate.cuckoo_bound              # rewrite the table
    python -m scripts.generate.cuckoo_bound --check      # compare it with what is committed
    python -m scripts.generate.cuckoo_bound -k 419       # explain one k

Layout: three sub-tables. A public permutation of the m positions, one for each sub-table, is cut
into bins of theta consecutive positions (the last bin may be shorter). A position has one candidate
bin in each sub-table; `stash` items may stay unplaced. Matching is exact, so placing k items fails
if and only if some s of them together touch at most s - 1 - stash bins (Hall's theorem).
docs/specification/cuckoo-bound.md derives every formula here. Each step can only raise the bound;
"lemma 1, 2, 3" below refer to it.
"""

from __future__ import annotations

import json
import math
import sys
from functools import cache

import numpy as np
import numpy.typing as npt

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, option, program
from torchfsl.fsl.cuckoo.bounds import ITEMS
from torchfsl.fsl.suite import FAILURE_BITS

FloatArray = npt.NDArray[np.float64]

STASHES = (0, 1, 2)
TABLE = ROOT / "torchfsl" / "fsl" / "cuckoo" / "bounds_table.json"

MAX_EXACT_SIZE = 128
"""Violators of at most this many items are counted exactly, larger ones by a saddle point."""
MAX_LOAD = 2.35
"""With more items for each bin of a sub-table lemma 3 is not proved; the bound then reads as 1."""
MIN_THETA = 4
"""Bins of at most three positions never fail, so the bound is needed from four positions on."""
ROUNDING_BITS = 1e-4
"""Added to every bound, far more than the rounding errors of its float64 evaluation."""

SADDLE = 2.149
"""Any positive number is valid here; this one is best for three items a bin on average."""
SADDLE_COUNT = math.expm1(SADDLE) - SADDLE


def log_factorial(n: npt.ArrayLike) -> FloatArray:
    """Natural logarithm of n!, for an array of integers n >= 0."""
    n = np.asarray(n, dtype=np.float64)
    # Stirling's series at n + 6, where the first omitted term is below 1e-8, and six steps back.
    x = n + 6
    series = (1 - (1 - 2 / (7 * x * x)) / (30 * x * x)) / (12 * x)
    six_steps = (n + 1) * (n + 2) * (n + 3) * (n + 4) * (n + 5) * x
    half_log = 0.5 * math.log(2 * math.pi)
    return np.asarray((x + 0.5) * np.log(x) - x + half_log + series - np.log(six_steps))


def log_binomial(n: int, r: npt.ArrayLike) -> FloatArray:
    """Natural logarithm of n choose r, for an array of integers 0 <= r <= n."""
    r = np.asarray(r, dtype=np.float64)
    return log_factorial(n) - log_factorial(r) - log_factorial(n - r)


@cache
def log_crowded_maps() -> FloatArray:
    """Logarithms of N(s, v): maps of s items into v bins in which every bin gets at least two.

    Returns:
        float64 [MAX_EXACT_SIZE + 1, MAX_EXACT_SIZE // 2 + 1], minus infinity where N(s, v) = 0.
    """
    rows, columns = MAX_EXACT_SIZE + 1, MAX_EXACT_SIZE // 2 + 1
    count = [[0] * columns for _ in range(rows)]
    count[0][0] = 1
    for s in range(2, rows):
        for v in range(1, s // 2 + 1):
            # The last item joins a bin that is crowded without it, or makes a pair.
            count[s][v] = v * (count[s - 1][v] + (s - 1) * count[s - 2][v - 1])
    logs = [[math.log(n) if n else -math.inf for n in row] for row in count]
    return np.array(logs)


@cache
def _saddle_gain() -> float:
    """Log of the factor by which the best saddle point moves when theta falls to MIN_THETA."""
    low, high = SADDLE, 4 * SADDLE
    for _ in range(100):
        middle = (low + high) / 2
        if (1 + middle / MIN_THETA) ** MIN_THETA - 1 - middle < SADDLE_COUNT:
            low = middle
        else:
            high = middle
    return math.log(low / SADDLE)


def permutation_excess(load: npt.ArrayLike) -> FloatArray:
    """What drawing without replacement may add, in nats for each item and sub-table (lemma 2).

    Args:
        load: s / bins, in [0, MIN_THETA].

    Returns:
        float64 of the same shape; zero up to a load of about 2.15.
    """
    share = np.asarray(load, dtype=np.float64) / MIN_THETA
    free = np.maximum(1 - share, 1e-300)
    collisions = (free * np.log(free) + share) / np.maximum(share, 1e-300)
    return np.maximum(collisions - _saddle_gain(), 0.0)


def _log_sum(terms: npt.ArrayLike) -> float:
    """Log of the sum of exponentials."""
    terms = np.asarray(terms, dtype=np.float64)
    top = float(terms.max(initial=-math.inf))
    return top if math.isinf(top) else top + math.log(float(np.exp(terms - top).sum()))


def _small_violators(k: int, bins: int, stash: int, largest: int) -> list[float]:
    """Log terms of Hall's sum for violators of 4 + stash .. largest items, counted exactly."""
    terms = []
    log_choose_bins = log_binomial(bins, np.arange(largest // 2 + 1))
    for s in range(4 + stash, largest + 1):
        v = s - 1 - stash
        each = np.arange(1, s // 2 + 1)  # bins that the violator touches in one sub-table
        weight = log_choose_bins[each] + log_crowded_maps()[s, each]
        # Tilted so that the wanted entry of the convolution is its peak; entries too small for
        # float64 are rounded up, never down to zero.
        centre = min(max(v // 3, 2), s // 2) - 1
        tilt = float(weight[centre] - weight[centre - 1])
        tilted = weight - tilt * each
        top = float(tilted.max())
        sizes = np.maximum(np.exp(tilted - top), 1e-100)
        pairs = np.convolve(sizes, sizes)  # entry i: two sub-tables with i + 2 bins together
        third = v - 2 - np.arange(len(pairs))
        inside = (third >= 1) & (third <= s // 2)
        ways = float((pairs[inside] * sizes[third[inside] - 1]).sum())
        log_ways = math.log(ways) + 3 * top + tilt * v
        terms.append(float(log_binomial(k, s)) + log_ways - 3 * s * math.log(bins))
    return terms


def _block_edges(first: int, k: int) -> npt.NDArray[np.int64]:
    """Cuts first..k into short blocks: about sqrt(s)/8 long, and shorter again towards k."""
    middle = (first + k) // 2
    count = 16 * (math.isqrt(k) + 2)
    steps = np.arange(count) / 16
    left = (math.sqrt(first) + steps) ** 2
    right = k + 1 - steps**2
    edges = np.concatenate([left[left <= middle], right[right >= middle], [first, k + 1]])
    return np.unique(np.clip(edges.astype(np.int64), first, k + 1))


def _large_violators(k: int, bins: int, stash: int, first: int) -> float:
    """Log of the part of Hall's sum for violators of first..k items, by saddle point.

    The sum over v1 + v2 + v3 = v of the ways to choose bins is (3 bins choose v), by Vandermonde.
    A block's terms are all replaced by the largest: the convex part of their logarithm lies below
    its chord and the concave part below a tangent, so that the largest is at an end.
    """
    edges = _block_edges(first, k)
    start, stop = edges[:-1], edges[1:] - 1
    middle = (start + stop) // 2

    def convex(s: npt.NDArray[np.int64]) -> FloatArray:
        slope = math.log(SADDLE_COUNT) - 3 * math.log(SADDLE * bins)
        excess = 3 * s * permutation_excess(s / bins)
        return np.asarray(3 * log_factorial(s) + slope * s + excess)

    removed = (1 + stash) * math.log(SADDLE_COUNT)
    v = middle - 1 - stash
    concave = log_binomial(k, middle) + log_binomial(3 * bins, v)
    tangent = np.log((k - middle + 1) / middle) + np.log((3 * bins - v + 1) / v)
    at_start = convex(start) + concave + tangent * (start - middle)
    at_stop = convex(stop) + concave + tangent * (stop - middle)
    return _log_sum(np.log(stop - start + 1) + np.maximum(at_start, at_stop)) - removed


def _log2_bound(k: int, bins: int, stash: int) -> float:
    """Logarithm of Hall's sum to base 2, for 3 + stash < k <= MAX_LOAD * bins; may be positive."""
    largest = min(k, bins, MAX_EXACT_SIZE)
    terms = _small_violators(k, bins, stash, largest)
    first = max(largest, 3 + stash) + 1
    if first <= k:
        terms.append(_large_violators(k, bins, stash, first))
    return _log_sum(terms) / math.log(2) + ROUNDING_BITS


def failure_bound(k: int, bins: int, stash: int) -> float:
    """Upper bound on the probability that k items cannot all be placed.

    It holds for every index space of m >= k positions and every theta with m // theta >= bins.
    Hall's sum never falls when k grows and never rises when bins grow.

    Args:
        k: number of selected items, at least 1.
        bins: full bins (those of exactly theta positions) of each of the three sub-tables.
        stash: items that may stay unplaced, at least 0.

    Returns:
        Logarithm of the bound to base 2, at most 0; minus infinity where failure is impossible.
    """
    if k <= 3 + stash:  # an item's own three bins, one for each of three items, and the stash
        return -math.inf
    if k > MAX_LOAD * bins:
        return 0.0
    return min(0.0, _log2_bound(k, bins, stash))


def least_bins(k: int, stash: int, at_least: int = 1) -> int:
    """Least number of full bins of a sub-table whose bound is 2**-FAILURE_BITS or less.

    Args:
        k: number of selected items.
        stash: items that may stay unplaced.
        at_least: a number of bins that the answer is known, or wanted, not to fall below.
    """
    if failure_bound(k, at_least, stash) <= -FAILURE_BITS:
        return at_least
    low = max(at_least, math.ceil(k / MAX_LOAD) - 1)  # too few
    high, step = low, 1 + low // 64
    while failure_bound(k, high, stash) > -FAILURE_BITS:
        low, high, step = high, high + step, 2 * step
    # The logarithm of the bound is nearly linear in the bins, so interpolate, and halve in turn.
    interpolate = True
    while high - low > 1:
        middle = (low + high) // 2
        if interpolate and k <= MAX_LOAD * low:
            above = _log2_bound(k, low, stash) + FAILURE_BITS
            below = _log2_bound(k, high, stash) + FAILURE_BITS
            guess = low + math.ceil((high - low) * above / (above - below))
            middle = min(max(guess, low + 1), high - 1)
        interpolate = not interpolate
        if failure_bound(k, middle, stash) <= -FAILURE_BITS:
            high = middle
        else:
            low = middle
    return high


def compute_table() -> dict[int, list[int]]:
    """Least bins of a sub-table for every stash, in the order of `ITEMS`."""
    table: dict[int, list[int]] = {}
    for stash in STASHES:
        column: list[int] = []
        for k in ITEMS:
            column.append(least_bins(k, stash, at_least=column[-1] if column else 1))
        table[stash] = column
        print(f"stash {stash}: {len(column)} entries", file=sys.stderr)
    return table


def table_source(table: dict[int, list[int]]) -> str:
    """The text of torchfsl/fsl/cuckoo/bounds_table.json, a line for each stash."""
    lines = (f' "{stash}": {json.dumps(table[stash])}' for stash in STASHES)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _explain(k: int) -> None:
    for stash in STASHES:
        bins = least_bins(k, stash)
        bound = failure_bound(k, bins, stash)
        size = f"{bins} full bins a sub-table, {3 * bins / k:.4f} an item in all three"
        print(f"k={k} stash={stash}: {size}, fails with at most 2**{bound:.2f}")


@program(option("-k", int, "explain one number of selected items and stop"), CHECK, finds=False)
def main(options: Options) -> int:
    """Write, compare or explain."""
    if options.k is not None:
        _explain(options.k)
        return 0
    return write(options, TABLE, table_source(compute_table()))
