"""Recommenders on users' sequences: every user is a client, and fetches only the rows it needs.

The last item of a user is held out for the test; for validation the one before it, and the last is
left alone. Evaluation scores the held-out item against one that the user never touched, drawn once
with the experiment's seed. A client's training samples are the earlier items of its sequence, each
with the items before it as history, and some untouched items as negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from training.data.interactions import Interactions, draw_untouched
from training.data.prf import Stream
from training.sections import Recommendation
from training.tasks import metrics
from training.tasks.metrics import Ranking
from training.tasks.task import Batch, Budget, Ids, Task, Work, evaluating, seeded

ITEMS, CATEGORIES, USERS = (
    "item_embedding.weight",
    "category_embedding.weight",
    "user_embedding.weight",
)
INPUTS: Final = (USERS, ITEMS, CATEGORIES, ITEMS, CATEGORIES, None)
"""By argument of a recommender's forward the table whose ids it holds."""
Split = Literal["validation", "test"]
Follow = Callable[[Sequence[Any], str], Iterable[Any]]
"""Goes through the steps of something long, which it may show under a name."""
_HELD_OUT: Final[dict[Split, int]] = {"test": 1, "validation": 2}
"""Items at the end of a sequence that training never sees; the first of them is asked for."""
_TOGETHER: Final = 4096
"""Samples that evaluation scores at once."""
_BLOCK: Final = 2048
"""Items of the catalogue that it scores at once, for all users."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate for one user."""

    target: int
    history: Ids
    label: int


class RecommendationTask(Task):
    """A recommender, one user a client.

    Args:
        data: users, items, categories.
        settings: of samples. A client walks back from its latest training item and stops before
            the sample that would exceed `rows_per_client` rows of all tables together.
        network: makes the model from `items`, `categories`, `users`; it has an `item_embedding`,
            and it may have the other tables.
        seed: of model, negatives and evaluation.
        evaluate: which item is held out.
        steps: of a client in a round, each on all its samples.

    Attributes:
        follow: goes through the steps of rankings.
    """

    metric = "auc"
    retrieves = True

    def __init__(
        self,
        data: Interactions,
        settings: Recommendation,
        *,
        network: Callable[..., nn.Module],
        seed: int,
        evaluate: Split = "test",
        steps: int = 1,
    ) -> None:
        """Draw the evaluation's negatives."""
        needed = 2 * (settings.history + 1 + settings.negatives) + 1
        if settings.rows_per_client < needed:
            raise ValueError(
                f"recommendation.rows_per_client is {settings.rows_per_client}, but one sample "
                f"with {settings.history} history items and {settings.negatives} negatives can "
                f"need {needed} rows: raise recommendation.rows_per_client to {needed}"
            )
        self.data, self.settings, self.seed, self._steps = data, settings, seed, steps
        self.rows_per_client: Budget = settings.rows_per_client
        self.num_clients = data.num_users
        self._network = network
        self.keep_rows(np.arange(data.num_items))
        with torch.device("meta"):
            names = set(self._make().state_dict())
        self._tables = [table for table in (ITEMS, CATEGORIES, USERS) if table in names]
        self._held_out = _HELD_OUT[evaluate]
        self._known = [sequence[: -self._held_out] for sequence in data.sequences]
        self._positives = np.array([sequence[-self._held_out] for sequence in data.sequences])
        _refuse_users_of_all(data)
        self._negatives = np.array(
            [
                draw_untouched(
                    np.unique(sequence), data.num_items, 1, Stream(seed, "held-out negative", user)
                )[0]
                for user, sequence in enumerate(data.sequences)
            ]
        )
        self.follow: Follow = lambda steps, _: steps
        self._ranking = Ranking(
            data,
            self._positives,
            seed=seed,
            among_negatives=settings.ranked_users,
            in_catalogue=settings.catalogue_users,
        )

    @property
    def known(self) -> list[Ids]:
        """By client the items of its training data, in their order."""
        return self._known

    def keep_rows(self, items: Ids) -> None:
        """Give each of these items a row, and all others one together, the last."""
        is_whole = len(items) == self.data.num_items
        self._num_rows = len(items) + (not is_whole)
        self._row_of = np.full(self.data.num_items, len(items), dtype=np.int64)
        self._row_of[items] = np.arange(len(items))

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        return seeded(self._make, self.seed)

    def _make(self) -> nn.Module:
        return self._network(
            items=self._num_rows,
            categories=self.data.num_categories,
            users=self.data.num_users if self.settings.user_table else 0,
        )

    def work(self, round_number: int, client: int) -> Work:
        """All samples of the user that fit the row budget, as one batch for each step.

        There is none for short users.
        """
        samples, items = self._samples(client, Stream(self.seed, "work", round_number, client))
        needed = {
            ITEMS: np.unique(self._row_of[items]),
            CATEGORIES: np.unique(self.data.category_of[items]),
            USERS: np.array([client], dtype=np.int64),
        }
        rows = {table: needed[table] for table in self._tables}
        if not samples:
            return Work(rows, ())
        labels = torch.tensor([sample.label for sample in samples])
        inputs = self._inputs(
            np.full(len(samples), client),
            np.array([sample.target for sample in samples]),
            [sample.history for sample in samples],
        )
        return Work(rows, (Batch(inputs, labels),) * self._steps)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC, GAUC and logloss over every user's held-out item and its negative.

        Logloss corrects for the share of positives, which is larger than in training.
        """
        users = np.arange(self.num_clients)
        candidates = np.stack([self._positives, self._negatives], axis=1)
        logit = self._scores(model, users, candidates).reshape(-1)
        label, user = np.tile([1, 0], self.num_clients), np.repeat(users, 2)
        # Training sees one positive in 1 + negatives samples, evaluation one in two.
        probability = 1.0 / (1.0 + np.exp(-logit - np.log(self.settings.negatives)))
        return {
            "auc": metrics.auc(label, logit),
            "gauc": metrics.gauc(user, label, logit),
            "logloss": metrics.logloss(label, probability),
        }

    def final_test(self, model: nn.Module) -> dict[str, float]:
        """The held-out item's place among others: see `Ranking`."""
        return self._ranking.measures(lambda users, items: self._rank(model, users, items))

    @property
    def scope(self) -> Mapping[str, int]:
        """How many users the final test ranks, see `Ranking`, and how often rounds do."""
        return self._ranking.scope | {"rank_every": self.settings.rank_every}

    def baselines(self) -> dict[str, float]:
        """What ranking by popularity in the training data gives, and AUC of the untrained model."""
        popularity = self.data.popularity(self._held_out).astype(np.float64)
        targets = np.concatenate([self._positives, self._negatives])
        labels = np.repeat([1, 0], self.num_clients)
        ranked = self._ranking.measures(
            lambda users, items: np.broadcast_to(popularity[items], (len(users), items.shape[-1]))
        )
        return {
            "popularity_auc": metrics.auc(labels, popularity[targets]),
            "untrained_auc": self.evaluate(self.build_model())["auc"],
            **{f"popularity_{name}": value for name, value in ranked.items()},
        }

    def _scores(self, model: nn.Module, users: Ids, candidates: Ids) -> npt.NDArray[np.float64]:
        """Differences of logits `[n, c]` of users `[n]` and their candidates `[n, c]`."""
        num_each = candidates.shape[1]
        step = max(1, _TOGETHER // num_each)
        scores = np.empty(candidates.shape)
        # Users of similar history lengths share a batch, so that little is padded.
        order = np.argsort([len(self._known[user]) for user in users], kind="stable")
        with evaluating(model) as device:
            for start in range(0, len(order), step):
                group = order[start : start + step]
                histories = [self._known[u][-self.settings.history :] for u in users[group]]
                for first in range(0, num_each, _TOGETHER):
                    part = candidates[group, first : first + _TOGETHER]
                    named = np.repeat(users[group], part.shape[1])
                    output = model(*self._inputs(named, part.reshape(-1), histories, device))
                    found = (output[:, 1] - output[:, 0]).double().cpu().numpy()
                    scores[group, first : first + _TOGETHER] = found.reshape(part.shape)
        return scores

    def _rank(self, model: nn.Module, users: Ids, candidates: Ids) -> npt.NDArray[np.float32]:
        """Those of `_scores` by the model's own way, also of candidates `[c]` for all users."""
        scores = np.empty((len(users), candidates.shape[-1]), dtype=np.float32)
        score_items = cast("Callable[..., Tensor]", model.score_items)
        # Users of similar history lengths stand together, so that little is padded.
        order = np.argsort([len(self._known[user]) for user in users], kind="stable")
        histories = [self._known[user][-self.settings.history :] for user in users[order]]
        if candidates.ndim == 1:
            parts = [(0, len(users), i, i + _BLOCK) for i in range(0, len(candidates), _BLOCK)]
        else:
            step = max(1, _TOGETHER // candidates.shape[1])
            parts = [(u, u + step, 0, candidates.shape[1]) for u in range(0, len(users), step)]
        with evaluating(model) as device:
            for first, last, start, stop in self.follow(parts, "ranking"):
                own = order[first:last]
                items = candidates[start:stop] if candidates.ndim == 1 else candidates[own]
                inputs = self._inputs(users[own], items, histories[first:last], device)
                scores[own, start:stop] = score_items(*inputs).cpu().numpy()
        return scores

    def _samples(self, user: int, stream: Stream) -> tuple[list[Sample], Ids]:
        """Samples from the latest training position backwards, and the items they need."""
        known = self._known[user]
        touched = np.unique(known)  # not the held-out item: a client cannot know it
        samples: list[Sample] = []
        items: set[int] = set()
        cost = int(USERS in self._tables)  # the user's own row
        categories: set[int] = set()
        for position in range(len(known) - 1, 0, -1):
            history = known[max(0, position - self.settings.history) : position]
            negatives = draw_untouched(
                touched, self.data.num_items, self.settings.negatives, stream
            )
            needed = {*history.tolist(), int(known[position]), *negatives.tolist()} - items
            kinds = self._kinds(needed) - categories
            if cost + len(needed) + len(kinds) > self.settings.rows_per_client:
                break
            cost += len(needed) + len(kinds)
            items |= needed
            categories |= kinds
            samples.append(Sample(int(known[position]), history, 1))
            samples += [Sample(item, history, 0) for item in negatives.tolist()]
        return samples, np.array(sorted(items), dtype=np.int64)

    def _kinds(self, items: set[int]) -> set[int]:
        """Categories of items whose rows the model reads."""
        if CATEGORIES not in self._tables:
            return set()
        return set(self.data.category_of[list(items)].tolist())

    def _inputs(
        self, users: Ids, targets: Ids, histories: Sequence[Ids], device: torch.device | None = None
    ) -> tuple[Tensor, ...]:
        """The model's arguments for B samples; histories are padded to the longest one.

        Samples that follow each other may share a history: there are B or a divisor of B.
        """
        lengths = np.array([len(history) for history in histories])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros(mask.shape, dtype=np.int64)
        padded[mask] = np.concatenate(histories)
        shared = max(1, len(users) // len(histories))
        mask, padded = np.repeat(mask, shared, axis=0), np.repeat(padded, shared, axis=0)
        row, category = self._row_of, self.data.category_of
        arrays = (users, row[targets], category[targets], row[padded], category[padded], mask)
        return tuple(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)


def _refuse_users_of_all(data: Interactions) -> None:
    taken = [len(np.unique(sequence)) for sequence in data.sequences]
    if full := [user for user, count in enumerate(taken) if count == data.num_items]:
        raise ValueError(
            f"{len(full)} of {len(taken)} users (first: user {full[0]}) have events with all "
            f"{data.num_items} items, so no item is left to compare with: leave out the events of "
            "these users, or use data with more items"
        )
