"""AUC, GAUC, logloss, accuracy and measures of rankings in NumPy.

A ranking puts the held-out item among 99 seeded negatives, or as many as the user left, and in the
whole catalogue; items that the user took otherwise do not compete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from training.data.interactions import Interactions, draw_untouched
from training.data.prf import Stream
from training.tasks.task import Ids

log = logging.getLogger(__name__)

Reals = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]


def auc(labels: Whole, scores: Reals) -> float:
    """Probability that a random positive scores above a random negative, ties counting one half.

    Args:
        labels: `[n]` of 0 and 1.
        scores: `[n]`, any monotone score.

    Returns:
        A number in [0, 1]; NaN where one class is missing.
    """
    return float(_auc_by_group(np.zeros(len(labels), dtype=np.int64), labels, scores)[0][0])


def gauc(groups: Whole, labels: Whole, scores: Reals) -> float:
    """AUC of each group (user), averaged by the group's number of samples (Zhou et al. 2018).

    Groups of one class only have no AUC and are left out.

    Args:
        groups: `[n]`, the user of each sample.
        labels: `[n]` of 0 and 1.
        scores: `[n]`.

    Returns:
        A number in [0, 1]; NaN where no group has both classes.
    """
    values, sizes = _auc_by_group(groups, labels, scores)
    known = ~np.isnan(values)
    if not known.any():
        return float("nan")
    return float(np.average(values[known], weights=sizes[known]))


def logloss(labels: Whole, probabilities: Reals) -> float:
    """Mean of -log p(label); probabilities of class 1, cut to [1e-7, 1 - 1e-7]."""
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1.0 - 1e-7)
    return float(-np.mean(np.where(labels == 1, np.log(p), np.log1p(-p))))


def accuracy(labels: Whole, predictions: Whole) -> float:
    """Share of equal entries."""
    return float(np.mean(labels == predictions))


def ranks(positive: Reals, others: Reals) -> npt.NDArray[np.float64]:
    """Place of an item among others by score, from 1; ties share the mean of their places.

    Args:
        positive: `[n]`, the item's score.
        others: `[n, c]`, those of the others.

    Returns:
        `[n]` of numbers in [1, 1 + c], whole or half ones.
    """
    above = (others > positive[:, None]).sum(axis=1)
    level = (others == positive[:, None]).sum(axis=1)
    places: npt.NDArray[np.float64] = 1.0 + above + level / 2.0
    return places


def of_ranks(places: Reals) -> dict[str, float]:
    """Hit rate and NDCG of one relevant item, cut at 10 and at 20, and mean reciprocal rank.

    Args:
        places: `[n]`, from 1, as `ranks` gives them.
    """
    found: dict[str, float] = {}
    for most in CUTS:
        hit = places <= most
        found[f"hr{most}"] = float(np.mean(hit))
        found[f"ndcg{most}"] = float(np.mean(np.where(hit, 1.0 / np.log2(1.0 + places), 0.0)))
    return found | {"mrr": float(np.mean(1.0 / places))}


def _auc_by_group(
    groups: Whole, labels: Whole, scores: Reals
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """AUC and number of samples of every group, in the order of the group numbers."""
    order = np.lexsort((scores, groups))
    group, label, score = groups[order], labels[order] == 1, scores[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sizes = np.diff(np.r_[starts, len(group)])
    # Samples of one group with one score share the mean of their ranks.
    ties = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (score[1:] != score[:-1])])
    widths = np.diff(np.r_[ties, len(group)])
    rank = np.repeat(ties + (widths + 1) / 2.0, widths) - np.repeat(starts, sizes)
    positives = np.add.reduceat(label.astype(np.float64), starts)
    negatives = sizes - positives
    won = np.add.reduceat(np.where(label, rank, 0.0), starts) - positives * (positives + 1) / 2.0
    pairs = positives * negatives
    values = np.divide(won, pairs, out=np.full(len(starts), np.nan), where=pairs > 0)
    return values, sizes


NEGATIVES: Final = 99
CUTS: Final = (10, 20)
"""Places that count for hit rates and NDCG."""
_SCORES: Final = 300_000_000
"""Scores of the catalogue that are kept at once, 4 bytes each."""
Scores = Callable[[Ids, Ids], Reals]
"""Of users `[n]` and candidates, `[n, c]` or `[c]` for all of them, the scores `[n, c]`."""


class Ranking:
    """Users and their candidates, drawn once.

    Args:
        data: users and items.
        positives: int64 `[users]`, the held-out items.
        seed: of users and negatives.
        among_negatives: how many users; 0 for none.
        in_catalogue: how many users, from 0 on.

    Attributes:
        scope: how many users each ranking has, and where some of them have fewer than 99 negatives
            how many, and the fewest.
    """

    def __init__(
        self,
        data: Interactions,
        positives: Ids,
        *,
        seed: int,
        among_negatives: int,
        in_catalogue: int,
    ) -> None:
        self._data, self._positives = data, positives
        order = Stream(seed, "ranked users").permutation(data.num_users)
        self._users, self._in_catalogue = order[:among_negatives], order[:in_catalogue]
        drawn = [self._draw(user, np.unique(data.sequences[user]), seed) for user in self._users]
        counts = np.array([len(negatives) for negatives in drawn], dtype=np.int64)
        self._groups: list[tuple[Ids, Ids]] = []
        for count in np.unique(counts)[::-1]:
            group = np.flatnonzero(counts == count)
            users = self._users[group]
            negatives = np.stack([drawn[place] for place in group])
            self._groups.append((users, np.c_[positives[users], negatives]))
        self.scope = {"ranked_users": len(self._users), "catalogue_users": len(self._in_catalogue)}
        if few := int((counts < NEGATIVES).sum()):
            self.scope |= {
                "users_with_fewer_negatives": few,
                "fewest_negatives": int(counts.min()),
            }
            log.warning(
                "%d of %d ranked users have fewer than %d items to compare with; the smallest "
                    "number is %d. The task is easier for these users",
                few, len(counts), NEGATIVES, counts.min(),
            )  # fmt: skip

    def measures(self, scores: Scores) -> dict[str, float]:
        """HR and NDCG at 10 and 20 and MRR among negatives; `catalogue_...` those of all items."""
        measured: dict[str, float] = {}
        if self._groups:
            found = [scores(*group) for group in self._groups]
            measured |= of_ranks(np.concatenate([ranks(one[:, 0], one[:, 1:]) for one in found]))
        if len(self._in_catalogue):
            of_all = of_ranks(self.catalogue_places(scores))
            measured |= {f"catalogue_{name}": value for name, value in of_all.items()}
        return measured

    def catalogue_places(self, scores: Scores) -> npt.NDArray[np.float64]:
        """Places of the held-out items among all items, of the users that are ranked there."""
        items = np.arange(self._data.num_items)
        step = max(1, _SCORES // len(items))
        places = [np.empty(0)]
        for start in range(0, len(self._in_catalogue), step):
            users = self._in_catalogue[start : start + step]
            found = scores(users, items)
            for row, user in zip(found, users, strict=True):
                positive = row[[self._positives[user]]]
                others = np.delete(row, self._data.sequences[user])
                places.append(ranks(positive, others[None]))
        return np.concatenate(places)

    def _draw(self, user: int, touched: Ids, seed: int) -> Ids:
        """Distinct items that the user never took."""
        stream = Stream(seed, "ranking negatives", int(user))
        chosen = np.empty(0, dtype=np.int64)
        while missing := min(NEGATIVES, self._data.num_items - len(touched)) - len(chosen):
            more = draw_untouched(touched, self._data.num_items, missing, stream)
            chosen = np.unique(np.concatenate([chosen, more]))
        return chosen
