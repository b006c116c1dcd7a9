"""Small federated tasks on made-up data, by which defaults are compared.

Each is a `training.tasks.task.Task` with the torch optimizer of its clients and the number of
clients per round. A run takes seconds on one core.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from training.data import partition
from training.data.interactions import synthetic_interactions
from training.data.prf import Stream
from training.data.synthetic import synthetic_images, synthetic_sentences
from training.data.tables import Vocabulary
from training.sections import Recommendation
from training.tasks import metrics
from training.tasks.classification import (
    ClassificationTask,
    ImageExamples,
    SentenceExamples,
)
from training.tasks.recommendation import CATEGORIES, ITEMS, RecommendationTask, Sample
from training.tasks.task import Batch, Ids, LocalPlan, Task, Work

Optimizer = type[torch.optim.Optimizer]


@dataclass(frozen=True)
class Setting:
    """A task and how its clients train.

    Attributes:
        name: On the page.
        metric: Name of its figures.
        make: Builds the task from a seed.
        optimizer: Of the clients.
        rate: Its learning rate.
        per_round: Clients per round.
        rounds: Rounds of a run, a multiple of five.
    """

    name: str
    metric: str
    make: Callable[[int], Task]
    optimizer: Optimizer
    rate: float
    per_round: int
    rounds: int

    @property
    def title(self) -> str:
        """On the page, with the metric and the clients' optimizer."""
        return f"{self.name} ({self.metric}; clients' {self.optimizer.__name__} {self.rate:g})"


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: tuple[Batch, ...]) -> float:
    """Take one step per batch and return the mean loss."""
    losses = [0.0]
    for batch in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(*batch.inputs), batch.labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / max(len(batches), 1)


class TwoTower(nn.Module):
    """Users and items as unit vectors; logits of all pairs of a batch.

    Args:
        users: Rows of the user table.
        category_of: int64 `[items]`.
        counts: float `[items]`, how often an item is in the training data, by which logits of a
            batch's items are corrected.
        width: Values per embedding row.
    """

    category_of: Tensor
    counts: Tensor

    def __init__(self, users: int, category_of: Tensor, counts: Tensor, width: int = 16) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(len(category_of), width)
        self.category = nn.Embedding(int(category_of.max()) + 1, width)
        for table, deviation in ((self.user, 0.1), (self.item, 0.1), (self.category, 0.5)):
            nn.init.normal_(table.weight, std=deviation)
        self.user_tower = _tower(width, width)
        self.item_tower = _tower(2 * width, width)
        self.register_buffer("category_of", category_of)
        self.register_buffer("counts", counts)

    def users(self, ids: Tensor) -> Tensor:
        """Unit vectors `[B, width]`."""
        return functional.normalize(self.user_tower(self.user(ids)), dim=1)

    def items(self, ids: Tensor) -> Tensor:
        """Unit vectors `[B, width]`."""
        parts = [self.item(ids), self.category(self.category_of[ids])]
        return functional.normalize(self.item_tower(torch.cat(parts, dim=1)), dim=1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Logits `[B, B]`; a user's own item is on the diagonal."""
        return self.users(users) @ self.items(items).T / 0.1 - self.counts[items].log()


def _tower(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


class TwoTowerTask(Task):
    """500 users with two tastes each take 40 of 3,000 items; the last is asked for.

    Args:
        seed: Of data, model and batches.
        clients: Number of clients, which share the users equally.
        spread: Whether a client has interactions of all users, instead of all interactions of
            some users.
        steps: Batches per round; None for all.
    """

    metric = "hr10"
    retrieves = True
    users, items, categories, taken, batch = 500, 3000, 30, 40, 64

    def __init__(
        self, seed: int, clients: int = 20, *, spread: bool = False, steps: int | None = None
    ) -> None:
        """Draw the data."""
        self.num_clients, self.seed, self.steps = clients, seed, steps
        draw = torch.Generator().manual_seed(seed)
        self.category_of = torch.randint(0, self.categories, (self.items,), generator=draw)
        tastes = [torch.randperm(self.categories, generator=draw)[:2] for _ in range(self.users)]
        popularity = torch.rand(self.items, generator=draw) ** 6
        taken = torch.stack(
            [
                torch.multinomial(
                    popularity * (0.004 + torch.isin(self.category_of, taste).float()),
                    self.taken,
                    generator=draw,
                )
                for taste in tastes
            ]
        )
        self.known, self.asked = taken[:, :-1], taken[:, -1]
        self.counts = torch.bincount(self.known.reshape(-1), minlength=self.items) + 1.0
        pairs = torch.arange(self.known.numel())
        if spread:
            pairs = torch.randperm(len(pairs), generator=draw)
        self.parts = pairs.chunk(clients)
        rows = [self._rows(part) for part in self.parts]
        self.rows_per_client = {t: max(len(r[t]) for r in rows) for t in rows[0]}

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        torch.manual_seed(self.seed)
        return TwoTower(self.users, self.category_of, self.counts)

    def work(self, round_number: int, client: int) -> Work:
        """All interactions of the client once, in a new order."""
        part = self.parts[client]
        order = torch.from_numpy(
            Stream(self.seed, "work", round_number, client).permutation(len(part))
        )
        chosen = [c for c in part[order].split(self.batch) if len(c) > 1][: self.steps]
        batches = tuple(Batch((*self._ids(pairs),), torch.arange(len(pairs))) for pairs in chosen)
        return Work(self._rows(part), batches)

    def _ids(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Users and items of pairs that are numbered user by user."""
        return pairs // self.known.shape[1], self.known.reshape(-1)[pairs]

    def _rows(self, pairs: Tensor) -> dict[str, Ids]:
        users, items = self._ids(pairs)
        ids = {"user": users, "item": items, "category": self.category_of[items]}
        return {f"{table}.weight": found.unique().numpy() for table, found in ids.items()}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Share of users whose item is among the ten best of all that they have not taken."""
        assert isinstance(model, TwoTower)
        scores = model.users(torch.arange(self.users)) @ model.items(torch.arange(self.items)).T
        scores.scatter_(1, self.known, -torch.inf)
        target = scores.gather(1, self.asked[:, None])
        return {"hr10": float(((scores > target).sum(dim=1) < 10).float().mean())}


class WordsTask(Task):
    """20 clients, each with 40 separate words out of 50,000, half of them per class."""

    metric = "accuracy"
    retrieves = True
    num_clients = 20
    words, own, steps = 50_000, 40, 5
    rows_per_client = own

    def __init__(self, seed: int) -> None:
        """Draw the data: 16 sentences of six words per class and client."""
        self.seed = seed
        draw = torch.Generator().manual_seed(seed)
        range_of = self.words // self.num_clients
        self.data: list[tuple[Tensor, Tensor]] = []
        for client in range(self.num_clients):
            words = torch.randperm(range_of, generator=draw)[: self.own] + client * range_of
            picks = torch.randint(0, self.own // 2, (2, 16, 6), generator=draw)
            halves = words.view(2, -1)
            sentences = torch.cat([half[pick] for half, pick in zip(halves, picks, strict=True)])
            self.data.append((sentences, torch.arange(2).repeat_interleave(16)))

    def build_model(self) -> nn.Module:
        """A table of 50,000 x 16 and a linear layer."""
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.EmbeddingBag(self.words, 16), nn.Linear(16, 2))

    def work(self, round_number: int, client: int) -> Work:
        """Five steps on all of the client's sentences."""
        sentences, labels = self.data[client]
        rows = {"0.weight": sentences.unique().numpy()}
        return Work(rows, (Batch((sentences,), labels),) * self.steps)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean accuracy of the clients on their own sentences."""
        right = [float((model(x).argmax(dim=1) == y).float().mean()) for x, y in self.data]
        return {"accuracy": sum(right) / len(right)}


class HouseholdTask(RecommendationTask):
    """A recommender whose clients have ten users each, in batches of 64 samples."""

    together, batch = 10, 64

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_clients //= self.together

    def work(self, round_number: int, client: int) -> Work:
        """All samples of the client's users once, in a new order."""
        stream = Stream(self.seed, "work", round_number, client)
        users = range(client * self.together, (client + 1) * self.together)
        drawn = [(user, s) for user in users for s in self._samples(user, stream)[0]]
        samples = [drawn[place] for place in stream.permutation(len(drawn))]
        parts = [samples[n : n + self.batch] for n in range(0, len(samples), self.batch)]
        items = [np.append(sample.history, sample.target) for _, sample in samples]
        found = np.unique(np.concatenate(items))
        rows = {ITEMS: found, CATEGORIES: np.unique(self.data.category_of[found])}
        return Work(rows, tuple(map(self._batch, parts)))

    def _batch(self, part: list[tuple[int, Sample]]) -> Batch:
        users = np.array([user for user, _ in part])
        targets = np.array([sample.target for _, sample in part])
        inputs = self._inputs(users, targets, [sample.history for _, sample in part])
        return Batch(inputs, torch.tensor([sample.label for _, sample in part]))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC over all users."""
        scores = self._scores(
            model,
            np.arange(self.data.num_users),
            np.stack([self._positives, self._negatives], axis=1),
        )
        labels = np.tile([1, 0], self.data.num_users)
        return {"auc": metrics.auc(labels, scores.reshape(-1))}


def din(seed: int, users: int = 200) -> HouseholdTask:
    """Users who take 12 to 20 of 1,000 items of 20 categories."""
    data = synthetic_interactions(seed, users=users, items=1000, categories=20, length=(12, 20))
    settings = Recommendation(user_table=False, negatives=2, history=10, rows_per_client=620)
    network = functools.partial(models.DIN, dim=8, head=(16, 8), attention=(8, 4))
    return HouseholdTask(data, settings, network=network, seed=seed)


class SentenceTask(ClassificationTask):
    """Sentences; a client sends the rows of the words that it has."""

    train: SentenceExamples

    def __init__(self, *args: SentenceExamples, **options: Any) -> None:
        super().__init__(*args, **options)
        rows = [self._words(client) for client in range(self.num_clients)]
        self.rows_per_client = max(map(len, rows))

    def work(self, round_number: int, client: int) -> Work:
        """The batches, and the words in them."""
        batches = super().work(round_number, client).batches
        return Work({"embedding.weight": self._words(client)}, batches)

    def _words(self, client: int) -> Ids:
        """Words of the client's sentences, and the padding."""
        sentences = [self.train.sentences[place] for place in self.parts[client]]
        return np.unique(np.concatenate([[0], *sentences]))


def textcnn(seed: int) -> SentenceTask:
    """1,200 sentences of six classes at 20 clients, mostly of few classes each."""
    data = synthetic_sentences(seed, train=1200, test=600, classes=6)
    vocabulary = Vocabulary.build(data.train.inputs)
    train, test = (
        SentenceExamples(vocabulary.encode(split.inputs), split.labels)
        for split in (data.train, data.test)
    )
    return SentenceTask(
        train,
        test,
        parts=partition.label_skewed(train.labels, 20, 0.5, Stream(seed, "clients")),
        model=functools.partial(
            models.TextCNN, words=len(vocabulary), classes=6, dim=16, maps=8, dropout=0.1
        ),
        local=LocalPlan(batch_size=16, epochs=1),
        seed=seed,
    )


def cnn(seed: int) -> ClassificationTask:
    """1,000 images of 16 x 16 at 20 clients with two labels each, of whom 10 participate."""
    data = synthetic_images(seed, train=1000, test=500, shape=(1, 16, 16), classes=10)
    train, test = (ImageExamples(split.inputs, split.labels) for split in (data.train, data.test))
    return ClassificationTask(
        train,
        test,
        parts=partition.two_labels(train.labels, 20, Stream(seed, "clients")),
        model=_small_cnn,
        local=LocalPlan(batch_size=10, epochs=1),
        seed=seed,
    )


def _small_cnn() -> nn.Module:
    """The shape of `models.MnistCNN` with 3 x 3 kernels and fewer maps."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


_Adagrad, _Adam, _SGD = torch.optim.Adagrad, torch.optim.Adam, torch.optim.SGD
SETTINGS: Final = {
    "two-tower": Setting("Two-tower", "HR@10 over all 3,000 items", TwoTowerTask,
                         _Adagrad, 0.1, 20, 50),
    "words": Setting("Disjoint words", "accuracy", WordsTask, _Adagrad, 0.1, 20, 10),
    "din": Setting("DIN", "AUC", din, _Adam, 0.001, 20, 20),
    "textcnn": Setting("TextCNN", "accuracy", textcnn, _Adam, 0.003, 20, 30),
    "cnn": Setting("CNN, two labels per client, 10 of 20 clients per round", "accuracy", cnn,
                   _SGD, 0.05, 10, 30),
    "din-large": Setting("DIN with a large client rate", "AUC", din, _Adagrad, 0.05, 20, 20),
    "din-sampled": Setting("DIN, 20 of 100 clients per round", "AUC",
                           functools.partial(din, users=1000), _Adam, 0.001, 20, 30),
}  # fmt: skip
