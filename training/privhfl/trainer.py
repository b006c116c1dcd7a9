"""Baselines and iterations of a PrivHFL experiment, by algorithm 1 of the paper.

A client's work in an iteration is a function of the settings, its number and all clients' models at
the start of the iteration. So the trainer can do one client after another, and an interrupted run
goes on with the next client.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from training.data.prf import Stream
from training.privhfl.distillation import (
    accuracy,
    bounded,
    logits,
    retrained,
    soft_labels,
    train_baseline,
)
from training.privhfl.expansion import POOL, Pictures, expand, select
from training.privhfl.querying import Answers, Querying
from training.privhfl.settings import Settings
from training.privhfl.tasks import CLASSES, RECIPES, Population, architecture, build_model


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one client in one iteration; iteration 0 is the baseline.

    Attributes:
        client: number.
        architecture: name.
        accuracy: on the test, in [0, 1].
        queries: how many it asked.
        answered_by: clients whose answers were added up.
        label_accuracy: share of queries whose soft label has the class that the private labels
            give most weight; NaN where there are no labels.
        bytes: by link and phase.
        cpu_seconds: by party of the protocol, and `training`.
        exact: see `Answers`.
        model_sha256: of the client's model.
    """

    client: int
    architecture: str
    accuracy: float
    queries: int = 0
    answered_by: tuple[int, ...] = ()
    label_accuracy: float = math.nan
    bytes: Mapping[str, int] = field(default_factory=dict)
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    exact: bool | None = None
    model_sha256: str = ""


class Trainer:
    """Makes each client's next model.

    Args:
        settings: of the experiment.
        population: all clients' samples, and the test.
        querying: how queries are answered.
    """

    def __init__(self, settings: Settings, population: Population, querying: Querying) -> None:
        self.settings, self.population, self.querying = settings, population, querying
        self._recipe = RECIPES[settings.task]

    def baseline(self, client: int) -> tuple[nn.Module, Outcome]:
        """Train a client's first model on its own samples."""
        settings, begun = self.settings, time.process_time()
        model = build_model(settings, client)
        stream = Stream(settings.seed, "privhfl baseline", client)
        train_baseline(model, self.population.clients[client], self._recipe, stream)
        return model, self._outcome(client, model, begun)

    def iterate(
        self, iteration: int, client: int, before: list[nn.Module]
    ) -> tuple[nn.Module, Outcome]:
        """A client's next model.

        Args:
            iteration: from 1.
            client: number.
            before: all clients' models when the iteration began, in evaluation mode.
        """
        settings = self.settings
        queries: Pictures | None = None
        labels: Tensor | None = None
        answers: Answers | None = None
        others = self.answering(iteration, client)
        if settings.control != "local":
            queries = self.queries(iteration, client, before[client])
        if queries is not None and settings.control == "none":
            people = self.population.clients
            asked = [(number, bounded(before[number], people[number])) for number in others]
            answers = self.querying.ask(iteration, client, queries.images, asked)
        begun = time.process_time()
        if queries is not None:
            labels = self._labels(queries, answers, before[client])
        stream = Stream(settings.seed, "privhfl retraining", iteration, client)
        model = retrained(
            before[client],
            self.population.clients[client],
            None if queries is None else queries.images,
            labels,
            self._recipe,
            stream,
        )
        outcome = self._outcome(client, model, begun)
        if answers is None or queries is None or labels is None:
            return model, outcome
        return model, dataclasses.replace(
            outcome,
            queries=len(labels),
            answered_by=others,
            label_accuracy=_agreement(labels, queries),
            bytes=answers.bytes,
            cpu_seconds={**answers.cpu_seconds, **outcome.cpu_seconds},
            exact=answers.exact,
        )

    def answering(self, iteration: int, client: int) -> tuple[int, ...]:
        """The clients that answer, in increasing order: C of the others."""
        others = [n for n in range(self.settings.clients) if n != client]
        stream = Stream(self.settings.seed, "privhfl answering", iteration, client)
        return tuple(others[i] for i in stream.choice(len(others), self.settings.answering))

    def queries(self, iteration: int, client: int, model: nn.Module) -> Pictures:
        """Expand the private pictures into a pool, and choose from it."""
        settings, own = self.settings, self.population.clients[client]
        random = settings.selection == "random"
        wanted = settings.queries if random else POOL * settings.queries
        stream = Stream(settings.seed, "privhfl queries", iteration, client)
        pool = expand(
            settings.expansion,
            own.images,
            own.labels,
            wanted,
            stream,
            classes=CLASSES,
            lam=settings.lam,
        )
        chosen = select(
            settings.selection,
            pool.images,
            settings.queries,
            model=model,
            private=own.images,
            stream=stream,
        )
        return pool.take(chosen)

    def _labels(self, queries: Pictures, answers: Answers | None, own: nn.Module) -> Tensor:
        settings = self.settings
        if answers is None:
            if settings.control == "mixlocal":
                assert queries.own_labels is not None
                return queries.own_labels
            return soft_labels(logits(own, queries.images), 1, settings.temperature)
        if settings.label == "probabilities":
            return answers.sums / answers.count
        return soft_labels(answers.sums, answers.count, settings.temperature)

    def _outcome(self, client: int, model: nn.Module, begun: float) -> Outcome:
        model.eval()
        seconds = {"training": time.process_time() - begun}
        correct = accuracy(model, self.population.test)
        return Outcome(
            client,
            architecture(self.settings, client),
            correct,
            cpu_seconds=seconds,
            model_sha256=model_sha256(model),
        )


def model_sha256(model: nn.Module) -> str:
    """Of names and bytes of all parameters and buffers, little-endian."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + b"\0" + tensor.numpy().tobytes())
    return digest.hexdigest()


def _agreement(labels: Tensor, queries: Pictures) -> float:
    if queries.own_labels is None:
        return math.nan
    return float((labels.argmax(dim=1) == queries.own_labels.argmax(dim=1)).double().mean())
