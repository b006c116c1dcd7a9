"""DIN on users' sequences: every user is a client, and fetches only the rows it needs.

The last item of a user is held out. Evaluation scores it against one item that the user never
touched, drawn once with the experiment's seed. A client's training samples are the earlier items
of its sequence, each with the items before it as history, and some untouched items as negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import models
from training.data.interactions import Interactions, draw_untouched
from training.data.prf import Stream
from training.tasks import metrics
from training.tasks.task import Batch, Ids, Work

ITEMS, CATEGORIES, USERS = (
    "item_embedding.weight",
    "category_embedding.weight",
    "user_embedding.weight",
)
_EVALUATION_USERS = 2048


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate for one user."""

    target: int
    history: Ids
    label: int


class RecommendationTask:
    """DIN, one user a client.

    Args:
        data: users, items, categories.
        seed: of model, negatives and evaluation.
        dim: embedding width.
        history: most items of a history, the latest ones.
        negatives: untouched items for every positive sample.
        rows_per_client: public budget of embedding rows (users, items and categories together).
            A client walks back from its latest training item and stops before the sample that
            would exceed it.
    """

    metric = "auc"
    retrieves = True
    widths = None

    def __init__(
        self,
        data: Interactions,
        *,
        seed: int,
        dim: int,
        history: int,
        negatives: int,
        rows_per_client: int,
    ) -> None:
        """Draw the evaluation's negatives."""
        if history < 1 or negatives < 1:
            raise ValueError("history and negatives must be at least 1")
        needed = 2 * (history + 1 + negatives) + 1
        if rows_per_client < needed:
            raise ValueError(
                f"rows_per_client is {rows_per_client}; one sample with {history} history items "
                f"and {negatives} negatives can need {needed}: raise it or shorten the history"
            )
        self.data, self.seed, self.dim = data, seed, dim
        self.history, self.negatives, self.rows_per_client = history, negatives, rows_per_client
        self.num_clients = data.num_users
        self._positives = np.array([sequence[-1] for sequence in data.sequences])
        self._negatives = np.array(
            [
                draw_untouched(
                    np.unique(sequence), data.num_items, 1, Stream(seed, "held-out negative", user)
                )[0]
                for user, sequence in enumerate(data.sequences)
            ]
        )

    def build_model(self) -> nn.Module:
        """DIN with seeded initial weights."""
        torch.manual_seed(Stream(self.seed, "model").torch_seed())
        return models.DIN(
            items=self.data.num_items,
            categories=self.data.num_categories,
            users=self.data.num_users,
            dim=self.dim,
        )

    def work(self, round_number: int, client: int) -> Work:
        """All samples of the user that fit the row budget, as one batch."""
        samples, items = self._samples(client, Stream(self.seed, "work", round_number, client))
        rows = {
            ITEMS: items,
            CATEGORIES: np.unique(self.data.category_of[items]),
            USERS: np.array([client], dtype=np.int64),
        }
        labels = torch.tensor([sample.label for sample in samples])
        inputs = self._inputs(
            np.full(len(samples), client),
            np.array([sample.target for sample in samples]),
            [sample.history for sample in samples],
        )
        return Work(rows, (Batch(inputs, labels),))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC, GAUC and logloss over every user's held-out item and its negative.

        Logloss corrects for the share of positives, which is larger than in training.
        """
        users, labels, logits = [], [], []
        # Users of similar history lengths share a batch, so that little is padded.
        order = np.argsort([len(s) for s in self.data.sequences], kind="stable")
        training = model.training
        model.eval()
        with torch.no_grad():
            for start in range(0, len(order), _EVALUATION_USERS):
                group = order[start : start + _EVALUATION_USERS]
                histories = [self.data.sequences[u][:-1][-self.history :] for u in group]
                targets = np.concatenate([self._positives[group], self._negatives[group]])
                both = np.concatenate([group, group])
                output = model(*self._inputs(both, targets, histories + histories, model))
                users.append(both)
                labels.append(np.repeat([1, 0], len(group)))
                logits.append((output[:, 1] - output[:, 0]).double().cpu().numpy())
        model.train(training)
        user, label, logit = (np.concatenate(parts) for parts in (users, labels, logits))
        # Training sees one positive in 1 + negatives samples, evaluation one in two.
        probability = 1.0 / (1.0 + np.exp(-logit - np.log(self.negatives)))
        return {
            "auc": metrics.auc(label, logit),
            "gauc": metrics.gauc(user, label, logit),
            "logloss": metrics.logloss(label, probability),
        }

    def final_test(self, model: nn.Module) -> dict[str, float]:
        """Nothing: evaluations use the test data."""
        return {}

    def baselines(self) -> dict[str, float]:
        """AUC of ranking by popularity in the training data, and of the untrained model."""
        popularity = self.data.popularity().astype(np.float64)
        targets = np.concatenate([self._positives, self._negatives])
        labels = np.repeat([1, 0], self.num_clients)
        return {
            "popularity_auc": metrics.auc(labels, popularity[targets]),
            "untrained_auc": self.evaluate(self.build_model())["auc"],
        }

    def _samples(self, user: int, stream: Stream) -> tuple[list[Sample], Ids]:
        """Samples from the latest training position backwards, and the items they need."""
        known = self.data.sequences[user][:-1]
        touched = np.unique(known)  # not the held-out item: a client cannot know it
        samples: list[Sample] = []
        items: set[int] = set()
        cost = 1  # the user's own row
        categories: set[int] = set()
        for position in range(len(known) - 1, 0, -1):
            history = known[max(0, position - self.history) : position]
            negatives = draw_untouched(touched, self.data.num_items, self.negatives, stream)
            needed = {*history.tolist(), int(known[position]), *negatives.tolist()} - items
            kinds = set(self.data.category_of[list(needed)].tolist()) - categories
            if cost + len(needed) + len(kinds) > self.rows_per_client:
                break
            cost += len(needed) + len(kinds)
            items |= needed
            categories |= kinds
            samples.append(Sample(int(known[position]), history, 1))
            samples += [Sample(item, history, 0) for item in negatives.tolist()]
        return samples, np.array(sorted(items), dtype=np.int64)

    def _inputs(
        self,
        users: Ids,
        targets: Ids,
        histories: Sequence[Ids],
        model: nn.Module | None = None,
    ) -> tuple[Tensor, ...]:
        """DIN's arguments for B samples; histories are padded to the longest one."""
        lengths = np.array([len(history) for history in histories])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros(mask.shape, dtype=np.int64)
        padded[mask] = np.concatenate(histories)
        category = self.data.category_of
        device = "cpu" if model is None else next(model.parameters()).device
        arrays = (users, targets, category[targets], padded, category[padded], mask)
        return tuple(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
