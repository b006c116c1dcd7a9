"""Where a model puts the held-out item: among 99 seeded negatives, and in the whole catalogue.

Items that the user took otherwise do not compete, in neither of both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from training.data.interactions import Interactions, draw_untouched
from training.data.prf import Stream
from training.tasks import metrics
from training.tasks.task import Ids

NEGATIVES = 99
Scores = Callable[[Ids, Ids], npt.NDArray[np.float64]]
"""Of users `[n]` and their candidates `[n, c]`, the scores `[n, c]`."""


class Ranking:
    """Users and their candidates, drawn once.

    Args:
        data: users and items.
        positives: int64 `[users]`, the held-out items.
        seed: of users and negatives.
        among_negatives: how many users; 0 for none.
        in_catalogue: how many users, from 0 on.
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
        touched = [np.unique(data.sequences[user]) for user in self._users]
        self._count = min(NEGATIVES, data.num_items - max(map(len, touched), default=0))
        drawn = [self._draw(*pair, seed) for pair in zip(self._users, touched, strict=True)]
        negatives = np.array(drawn, dtype=np.int64).reshape(-1, self._count)
        self._candidates = np.c_[positives[self._users], negatives]

    def measures(self, scores: Scores) -> dict[str, float]:
        """HR@10, NDCG@10 and MRR among negatives; `catalogue_...` those among all items."""
        measured: dict[str, float] = {}
        if len(self._users):
            found = scores(self._users, self._candidates)
            measured |= metrics.of_ranks(metrics.ranks(found[:, 0], found[:, 1:]))
        if len(self._in_catalogue):
            places = np.concatenate([self._place(scores, user) for user in self._in_catalogue])
            of_all = metrics.of_ranks(places)
            measured |= {f"catalogue_{name}": value for name, value in of_all.items()}
        return measured

    def _draw(self, user: int, touched: Ids, seed: int) -> Ids:
        """Distinct items that the user never took."""
        stream = Stream(seed, "ranking negatives", int(user))
        chosen = np.empty(0, dtype=np.int64)
        while len(chosen) < self._count:
            missing = self._count - len(chosen)
            more = draw_untouched(touched, self._data.num_items, missing, stream)
            chosen = np.unique(np.concatenate([chosen, more]))
        return chosen

    def _place(self, scores: Scores, user: int) -> npt.NDArray[np.float64]:
        untouched = np.setdiff1d(np.arange(self._data.num_items), self._data.sequences[user])
        candidates = np.concatenate([self._positives[user : user + 1], untouched])[None]
        found = scores(np.array([user]), candidates)
        return metrics.ranks(found[:, 0], found[:, 1:])
