"""A client of a simulation in one round: what it hears, trains and hands in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch

from torchfsl.engine.residual import Residual
from torchfsl.engine.round import Round
from torchfsl.sesa import Sharded
from torchfsl.submodel.aggregation import Participant, RoundSession
from training.aggregations.dropout import DroppedOut
from training.attached import Attached
from training.config import Config
from training.data.prf import Stream
from training.local import begin_local_training, train
from training.tasks.task import Task, Work

ASKING: Final = 8
"""Clients that ask for their rows before the first of them trains: so many do servers answer
together. The trees of all are held meanwhile."""


@dataclass(slots=True)
class Job:
    """A client's round.

    Attributes:
        participant: the client's side of the aggregation.
        residual: the client's unsent update; changed when the round is done.
        drops_out: whether the client's update is lost.
        session: the round's session once the client has started, if a worker plays the client.
        error: error of the client's last call, if a worker plays the client.
    """

    participant: Participant
    residual: Residual
    drops_out: bool
    session: RoundSession | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A client that may ask, and then train."""

    client: int
    work: Work
    training_round: Round
    drops_out: bool


class Clients:
    """Plays one client after the other.

    Args:
        config: settings.
        task: whose clients they are.
        attached: the model that each of them trains.
    """

    def __init__(self, config: Config, task: Task, attached: Attached) -> None:
        self.config, self.task, self.attached = config, task, attached

    def run(
        self, number: int, participant: Participant, residual: Residual, *, drops_out: bool
    ) -> int:
        """A client's round; returns the number of values that clipping cut.

        Args:
            number: number of the round.
            participant: the client's side of the aggregation.
            residual: the client's unsent update; changed.
            drops_out: whether the client's update is lost; the client then trains nothing.
        """
        return self._play(number, self._ready(number, Job(participant, residual, drops_out)))

    def run_all(self, number: int, jobs: Iterable[Job], done: Callable[[int], None]) -> None:
        """Play the clients' rounds; calls `done` with what `run` returns for each.

        If clients fetch rows, some of them ask before the first of them trains; see `ASKING`.
        """
        coming = iter(jobs)
        while window := list(itertools.islice(coming, ASKING)):
            ready = [self._ready(number, job) for job in window]
            for one in ready if self._retrieves(window[0].participant) else ():
                one.training_round.prefetch()
            for one in ready:
                done(self._play(number, one))

    def _ready(self, number: int, job: Job) -> _Ready:
        """A client's work, and its round before it begins."""
        attached, config, client = self.attached, self.config, job.participant.client_id
        work = self.task.work(number, client)
        training_round = Round(
            attached.hooks,
            job.participant,
            rows=dict(work.rows) if self._retrieves(job.participant) else None,
            number=number,
            rounding_seed=rounding_seed(config, number, client),
            residual=job.residual,
        )
        return _Ready(client, work, training_round, job.drops_out)

    def _play(self, number: int, ready: _Ready) -> int:
        """Its training and report; how many values clipping cut."""
        attached, config, training_round = self.attached, self.config, ready.training_round
        begin_local_training(attached.model, attached.optimizer, config.local, number)
        if ready.work.shards is not None:
            assert isinstance(attached.model, Sharded)
            attached.model.take(ready.work.shards)
        _seed_torch(dropout_seed(config, number, ready.client), config.device)
        try:
            with training_round:
                if not ready.drops_out:
                    train(attached.model, attached.optimizer, ready.work, config.local)
        except DroppedOut:
            return 0
        assert training_round.clip_report is not None
        return training_round.clip_report.num_clipped

    @staticmethod
    def _retrieves(participant: Participant) -> bool:
        return any(segment.retrieve for segment in participant.plan.segments)


def dropout_seed(config: Config, number: int, client: int) -> int:
    """Of torch's generator before a client trains."""
    return Stream(config.seed, "dropout", number, client).torch_seed()


def rounding_seed(config: Config, number: int, client: int) -> bytes | None:
    """Of a client's rounding and its draws of blocks; None where there are neither."""
    if config.encoding.rounding != "stochastic" and config.rest.policy != "sample":
        return None
    return Stream(config.seed, "rounding", number, client).bytes(16)


def _seed_torch(seed: int, device: str) -> None:
    """Seed the generators that training on `device` uses.

    `torch.manual_seed` reaches for every kind of device there is, which takes milliseconds.
    """
    torch.default_generator.manual_seed(seed)
    if torch.device(device).type == "cuda":
        torch.cuda.manual_seed(seed)
