"""Answers of other clients' models to a client's queries: their sum, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from training.privhfl.distillation import logits
from training.privhfl.settings import Settings
from training.sections import ConfigError


@dataclass(slots=True)
class Answers:
    """What a querying client got, of all its batches.

    Attributes:
        sums: float32 `[B, classes]`: logits (or probabilities) added up over the answering clients.
        count: how many answered.
        bytes: by link and phase, such as `"querier to server, offline"`; empty without a protocol.
        cpu_seconds: by party.
        exact: whether the sums equal those of the integers in the clear, bit for bit; None where
            nothing is compared.
    """

    sums: Tensor
    count: int
    bytes: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    exact: bool | None = None


class Querying(Protocol):
    """One way to have queries answered."""

    def ask(
        self,
        iteration: int,
        client: int,
        queries: Tensor,
        answering: Sequence[tuple[int, nn.Module]],
    ) -> Answers:
        """Let the answering clients answer the client's queries `[B, channels, side, side]`."""


class Plain:
    """No protection: float32 logits, added up.

    Args:
        probabilities: add up each answer's softmax instead.
    """

    def __init__(self, *, probabilities: bool = False) -> None:
        self._probabilities = probabilities

    def ask(
        self,
        iteration: int,
        client: int,
        queries: Tensor,
        answering: Sequence[tuple[int, nn.Module]],
    ) -> Answers:
        """See `Querying.ask`."""
        begun = time.process_time()
        sums = torch.zeros(())
        for _, model in answering:
            answer = logits(model, queries)
            sums = sums + (answer.softmax(dim=1) if self._probabilities else answer)
        seconds = time.process_time() - begun
        return Answers(sums, len(answering), cpu_seconds={"answerers": seconds})


def build_querying(settings: Settings) -> Querying:
    """What the settings ask for.

    Raises:
        ConfigError: it is not there yet.
    """
    if settings.querying != "plain":
        raise ConfigError(f"querying {settings.querying!r} is not there yet: choose 'plain'")
    return Plain(probabilities=settings.label == "probabilities")
