"""Answers of other clients' models to a client's queries: their sum, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from torchfsl.privhfl import Answer, QueryPlan, Ring, make_plan
from torchfsl.privhfl import Querying as Parties
from training.data.prf import Stream
from training.privhfl.distillation import logits
from training.privhfl.settings import Settings
from training.privhfl.tasks import RECIPES, Population, build_model

Asked = Sequence[tuple[int, nn.Module]]
"""Answering clients: number and model."""


@dataclass(slots=True)
class Answers:
    """Results for a querying client, of all its batches.

    Attributes:
        sums: float32 `[B, classes]`: logits (or probabilities) added up over the answering clients.
        count: number of answering clients.
        bytes: bytes by link and phase, such as `"querier to server, offline"`; empty without a
            protocol.
        cpu_seconds: processor seconds by party.
        exact: whether the sums are bit-identical to those of the integers in the clear; None if
            nothing is compared.
    """

    sums: Tensor
    count: int
    bytes: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    exact: bool | None = None


class Querying(Interface):
    """One way to have queries answered."""

    def ask(self, iteration: int, client: int, queries: Tensor, answering: Asked) -> Answers:
        """Let the answering clients answer the client's queries `[B, channels, side, side]`."""


class Plain:
    """No protection: float32 logits, added up.

    Args:
        probabilities: add up each answer's softmax instead.
    """

    def __init__(self, *, probabilities: bool = False) -> None:
        self._probabilities = probabilities

    def ask(self, iteration: int, client: int, queries: Tensor, answering: Asked) -> Answers:
        """See `Querying.ask`."""
        begun = time.process_time()
        sums = torch.zeros(())
        for _, model in answering:
            answer = logits(model, queries)
            sums = sums + (answer.softmax(dim=1) if self._probabilities else answer)
        seconds = time.process_time() - begun
        return Answers(sums, len(answering), cpu_seconds={"answerers": seconds})


class Protocol:
    """Integers of a ring: by the protocol (`secure`), or the same in the clear (`fixed`).

    All parties are in this process. With equal seeds both modes round alike, so that they give
    equal sums; `secure` is compared with `fixed` for every query.

    Args:
        settings: of the experiment.
        population: each answering client sets the ranges of its integers by its own samples.
    """

    def __init__(self, settings: Settings, population: Population) -> None:
        self._population = population
        plan = _plan(settings)
        seed = Stream(settings.seed, "privhfl keys").bytes(32)
        modes = _MODES[settings.querying]
        self._parties = [Parties(plan, mode=mode, seed=seed) for mode in modes]
        self._loaded: dict[int, int] = {}

    def ask(self, iteration: int, client: int, queries: Tensor, answering: Asked) -> Answers:
        """See `Querying.ask`."""
        for number, model in answering:
            if self._loaded.get(number) != iteration:
                images = self._population.clients[number].images
                for parties in self._parties:
                    parties.load(number, model, images, version=iteration)
                self._loaded[number] = iteration
        who = [number for number, _ in answering]
        found = [parties.ask(client, who, queries, iteration) for parties in self._parties]
        exact = [torch.equal(found[0].logits, other.logits) for other in found[1:]]
        answers = _answers(found[0], len(who))
        answers.exact = all(exact) if exact else None
        if self._parties[0].mode == "fixed":
            answers.bytes = {}
        return answers


def build_querying(settings: Settings, population: Population) -> Querying:
    """The way of querying that the settings ask for.

    Raises:
        ParameterError: the protocol does not support the settings.
    """
    if settings.querying == "plain":
        return Plain(probabilities=settings.label == "probabilities")
    return Protocol(settings, population)


_MODES: dict[str, tuple[Literal["secure", "fixed"], ...]] = {
    "secure": ("secure", "fixed"),
    "fixed": ("fixed",),
}
"""Mode that gives the answers, and modes to compare the answers with."""


def _answers(answer: Answer, count: int) -> Answers:
    sent = {f"{link}, {phase}": size for (link, phase), size in sorted(answer.cost.sent.items())}
    seconds = {party: float(spent) for party, spent in answer.cost.seconds.items()}
    return Answers(answer.logits.float(), count, sent, seconds)


def _plan(settings: Settings) -> QueryPlan:
    networks = {client: build_model(settings, client) for client in range(settings.clients)}
    recipe = RECIPES[settings.task]
    return make_plan(
        networks,
        (recipe.shape[0], recipe.crop, recipe.crop),
        batch=min(settings.batch, settings.queries),
        ring=Ring(settings.ring_bits, settings.fractional, settings.fractional),
        comparison=settings.comparison,
        max_answering=settings.answering,
        session=f"experiment {settings.seed}",  # with seeded keys: runs round alike
    )
