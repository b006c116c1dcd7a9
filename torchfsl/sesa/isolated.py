"""How likely a sum has a single honest term, which no protocol for sums can hide."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence


def isolation(groups: Sequence[tuple[int, float]], *, collusion: int, dropouts: int = 0) -> float:
    """Chance that a submodel gets updates from at most one honest client.

    The adversary is the worst set of `collusion` clients: those most likely to own it. Of the
    others `dropouts` drop out, all sets of them alike; each of the rest owns the submodel
    independently with its group's probability.

    Args:
        groups: clients, and for each the probability that it owns the submodel.
        collusion: adversaries.
        dropouts: honest clients that drop out.
    """
    honest: list[tuple[int, float]] = []
    for count, chance in sorted(groups, key=lambda group: -group[1]):
        caught = min(count, collusion)
        collusion -= caught
        honest.append((count - caught, chance))
    dropouts = min(dropouts, sum(count for count, _ in honest))

    @functools.cache
    def chances(group: int, gone: int) -> tuple[float, float]:
        """No contributor, and exactly one, from that group on, of which `gone` drop out."""
        if group == len(honest):
            return 1.0, 0.0
        count, chance = honest[group]
        rest = sum(n for n, _ in honest[group + 1 :])
        none = single = 0.0
        for missing in range(max(0, gone - rest), min(count, gone) + 1):
            ways = math.comb(count, missing) * math.comb(rest, gone - missing)
            likely = ways / math.comb(count + rest, gone)
            left = count - missing
            here_none = (1 - chance) ** left
            here_one = left * chance * (1 - chance) ** (left - 1) if left else 0.0
            later_none, later_one = chances(group + 1, gone - missing)
            none += likely * here_none * later_none
            single += likely * (here_one * later_none + here_none * later_one)
        return none, single

    return sum(chances(0, dropouts))
