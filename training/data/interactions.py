"""Users and the items they took, in time order: the data of DIN.

A folder holds `sequences.txt.gz` (a line a user: `user item item ...`, oldest first) and
`item2attributes.json.gz` (item id to a list of attribute ids). All vocabularies are built from
the files: users in the order of their lines, items and categories by increasing id.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.prf import Stream

Ids = npt.NDArray[np.int64]
SEQUENCES, ATTRIBUTES = "sequences.txt.gz", "item2attributes.json.gz"
SHORTEST = 3
"""Items a user needs: history, target, and the one held out."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Users' sequences over a catalogue.

    Attributes:
        sequences: for each user int64 `[n]`, n >= 3, item numbers in time order.
        category_of: int64 `[items]`, the one category of each item.
        num_categories: number of categories.
    """

    sequences: tuple[Ids, ...]
    category_of: Ids
    num_categories: int

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.sequences)

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.category_of)

    def popularity(self, held_out: int = 1) -> Ids:
        """How often each item was taken, the last `held_out` of every user left out: `[items]`."""
        seen = np.concatenate([sequence[:-held_out] for sequence in self.sequences])
        return np.bincount(seen, minlength=self.num_items).astype(np.int64)


def load_interactions(folder: Path) -> Interactions:
    """Read a folder.

    Users with fewer than three items are left out. Every item gets one category: its rarest
    attribute (fewest items have it; the smaller id on a tie), which is the most specific thing
    known of it. Items without attributes share one further category.

    Raises:
        FileNotFoundError: a file is missing; the message names both.
        ValueError: a file does not have the format above.
    """
    for name in (SEQUENCES, ATTRIBUTES):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}: --data of a recommender names a folder with {SEQUENCES} "
                f"and {ATTRIBUTES}, or with files of MovieLens or RecBole, or a CSV or Parquet "
                "file, or is 'synthetic'"
            )
    raw = [_numbers(line, folder) for line in _lines(folder / SEQUENCES)]
    raw = [sequence for sequence in raw if len(sequence) >= SHORTEST]
    if not raw:
        raise ValueError(f"{folder / SEQUENCES}: no user has {SHORTEST} items or more")
    items = np.unique(np.concatenate(raw))
    with gzip.open(folder / ATTRIBUTES, "rt", encoding="utf-8") as file:
        attributes = {int(item): list(map(int, ids)) for item, ids in json.load(file).items()}
    chosen = rarest_attribute(items.tolist(), attributes)
    categories, category_of = np.unique(chosen, return_inverse=True)
    sequences = tuple(np.searchsorted(items, sequence).astype(np.int64) for sequence in raw)
    return Interactions(sequences, category_of.astype(np.int64), len(categories))


def rarest_attribute(items: Sequence[int], attributes: Mapping[int, Sequence[int]]) -> list[int]:
    """For each item its attribute that the fewest items have, or -1 where it has none."""
    common = Counter(a for item in items for a in set(attributes.get(item, ())))
    return [min(attributes.get(item) or [-1], key=lambda a: (common[a], a)) for item in items]


def draw_untouched(touched: Ids, num_items: int, count: int, stream: Stream) -> Ids:
    """`count` items, uniform among those not in `touched`, with repetition.

    Args:
        touched: int64, increasing, fewer than `num_items` distinct items.
        num_items: size of the catalogue.
        count: how many.
        stream: source of randomness.
    """
    # The r-th untouched item: r plus the touched items at or below it.
    rank = stream.integers(num_items - len(touched), count)
    gaps = touched - np.arange(len(touched))
    return rank + np.searchsorted(gaps, rank, side="right")


def synthetic_interactions(
    seed: int, *, users: int, items: int, categories: int, length: tuple[int, int]
) -> Interactions:
    """Learnable data: every user likes two categories and takes items mostly from these.

    Args:
        seed: of the generator.
        users: number of users.
        items: size of the catalogue.
        categories: number of categories, at least two.
        length: fewest and most items a user, within [3, items).
    """
    stream = Stream(seed, "synthetic interactions")
    category_of = stream.integers(categories, items)
    members = [np.flatnonzero(category_of == c) for c in range(categories)]
    everything = np.arange(items)
    low, high = length
    sequences = []
    for user in range(users):
        draw = Stream(seed, "synthetic user", user)
        tastes = draw.choice(categories, 2)
        size = low + int(draw.integers(high - low + 1, 1)[0])
        pools = [members[tastes[side]] for side in draw.integers(2, size)]
        pools = [
            pool if len(pool) and liked < 0.9 else everything
            for pool, liked in zip(pools, draw.uniform(size), strict=True)
        ]
        picks = [
            pool[int(u * len(pool))] for pool, u in zip(pools, draw.uniform(size), strict=True)
        ]
        sequences.append(np.array(picks, dtype=np.int64))
    return Interactions(tuple(sequences), category_of, categories)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line for line in file if line.strip()]


def _numbers(line: str, folder: Path) -> Ids:
    try:
        return np.array([int(word) for word in line.split()[1:]], dtype=np.int64)
    except ValueError as error:
        raise ValueError(
            f"{folder / SEQUENCES}: expected 'user item item ...' in whole numbers, found "
            f"{line[:60]!r}"
        ) from error
