"""Users and the items they took, in time order: the data of DIN.

A folder holds `sequences.txt.gz` (a line a user: `user item item ...`, oldest first) and
`item2attributes.json.gz` (item id to a list of attribute ids). All vocabularies are built from
the files: users in the order of their lines, items and categories by increasing id.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.ids import is_whole
from training.data.prf import Stream

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
SEQUENCES, ATTRIBUTES = "sequences.txt.gz", "item2attributes.json.gz"
SHORTEST = 3
"""Items a user needs: history, target, and the one held out."""
_DIGITS = 18


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

    The function leaves out users with fewer than three items. Every item gets one category: its
    rarest attribute, which is the most specific fact known about the item. The fewest items have
    this attribute; the smaller id wins on a tie. Items without attributes share one further
    category.

    Raises:
        FileNotFoundError: a file is missing; the message names both.
        ValueError: a file does not have the format above.
    """
    for name in (SEQUENCES, ATTRIBUTES):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} does not have {name}: pass --data with a folder of {SEQUENCES} and "
                f"{ATTRIBUTES}, a folder of MovieLens or RecBole files, a CSV, TSV or Parquet "
                "file, or 'synthetic'"
            )
    with _told_of(folder / SEQUENCES):
        raw = _sequences(folder / SEQUENCES)
    if not raw:
        raise ValueError(
            f"{folder / SEQUENCES}: each user has fewer than {SHORTEST} items: use data of users "
            f"with {SHORTEST} items or more"
        )
    items = np.unique(np.concatenate(raw))
    with _told_of(folder / ATTRIBUTES):
        attributes = _attributes(folder / ATTRIBUTES)
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


@contextlib.contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Name the file in what gzip and the decoder raise."""
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: expected UTF-8 text in gzip, but {error}: make this file from a UTF-8 file "
            f"with `gzip -k {path.name.removesuffix('.gz')}`"
        ) from error


def _sequences(path: Path) -> list[Ids]:
    """Items of the users that have enough."""
    sequences, users = [], set[str]()
    with gzip.open(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            user, *items = line.split() or [""]
            if len(items) >= SHORTEST:
                sequences.append(_numbers(items, f"{path}, line {number}"))
            if user in users:
                raise ValueError(
                    f"{path}, line {number}: user {user} has a second line: merge the lines of "
                    "this user"
                )
            users |= {user} - {""}
    text = (
        "%s: %d users. Left out: %d users with fewer than %d items. %d items equal the item "
        "before them"
    )
    repeated = sum(int((np.diff(items) == 0).sum()) for items in sequences)
    log.info(text, path, len(users), len(users) - len(sequences), SHORTEST, repeated)
    return sequences


def _attributes(path: Path) -> dict[int, list[int]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") as file:
            table = json.load(file, object_pairs_hook=list)
        return {
            _number(item): [_number(str(one)) for one in ids]
            for item, ids in _without_repeats(table)
        }
    except UnicodeDecodeError:
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected each item once, with a list of whole numbers ({error})"
        ) from error


def _without_repeats(
    pairs: Sequence[tuple[str, Sequence[object]]],
) -> Sequence[tuple[str, Sequence[object]]]:
    if not all(isinstance(ids, list) for _, ids in pairs):
        raise TypeError("an item has a value that is not a list of whole numbers")
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]!r} appears twice")
    return pairs


def _numbers(words: Sequence[str], where: str) -> Ids:
    try:
        return np.array([_number(word) for word in words], dtype=np.int64)
    except ValueError as error:
        raise ValueError(
            f"{where}: expected 'user item item ...' in whole numbers, but {error}"
        ) from error


def _number(text: str) -> int:
    """A whole number as Python prints it: 07 would be the item 7 in other clothes."""
    if not is_whole(text) or len(text) > _DIGITS:
        raise ValueError(
            f"{text[:60]!r} is not a whole number of at most {_DIGITS} digits without leading zeros"
        )
    return int(text)
