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
    """Candidates of every user, drawn once.

    Args:
        data: users and items.
        positives: int64 `[users]`, the held-out items.
        seed: of negatives, and of the users who rank the whole catalogue.
        catalogue_users: how many of these; 0 for none.
    """

    def __init__(
        self, data: Interactions, positives: Ids, *, seed: int, catalogue_users: int
    ) -> None:
        """Draw the negatives."""
        self._data, self._positives = data, positives
        touched = [np.unique(sequence) for sequence in data.sequences]
        self._count = min(NEGATIVES, data.num_items - max(map(len, touched)))
        drawn = [self._draw(items, seed, user) for user, items in enumerate(touched)]
        self._candidates = np.concatenate([positives[:, None], np.array(drawn)], axis=1)
        most = min(catalogue_users, data.num_users)
        self._users = Stream(seed, "catalogue users").choice(data.num_users, most)

    def measures(self, scores: Scores) -> dict[str, float]:
        """HR@10, NDCG@10 and MRR among negatives; `catalogue_...` those among all items."""
        everyone = np.arange(self._data.num_users)
        found = scores(everyone, self._candidates)
        measured = metrics.of_ranks(metrics.ranks(found[:, 0], found[:, 1:]))
        if len(self._users):
            places = np.concatenate([self._place(scores, user) for user in self._users])
            of_all = metrics.of_ranks(places)
            measured |= {f"catalogue_{name}": value for name, value in of_all.items()}
        return measured

    def _draw(self, touched: Ids, seed: int, user: int) -> Ids:
        """Distinct items that the user never took."""
        stream = Stream(seed, "ranking negatives", user)
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
