"""A client of a simulation in one round: what it hears, trains and hands in."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from models import Sharded
from torchfsl.engine.residual import Residual
from torchfsl.submodel.aggregation import Participant
from training.aggregations.dropout import DroppedOut
from training.attached import Attached
from training.config import Config
from training.data.prf import Stream
from training.local import begin_local_training, train
from training.tasks.task import Ids, Task


class Clients:
    """Plays one client after the other.

    Args:
        config: settings.
        task: whose clients they are.
        attached: the model that each of them trains.
    """

    def __init__(self, config: Config, task: Task, attached: Attached) -> None:
        """Nobody plays yet."""
        self.config, self.task, self.attached = config, task, attached

    def run(
        self, number: int, participant: Participant, residual: Residual, *, drops_out: bool
    ) -> int:
        """A client's round; returns how many values clipping cut.

        Args:
            number: of the round.
            participant: the client's side of the aggregation.
            residual: what it owes; changed.
            drops_out: whether what it learns is lost; it then trains nothing.
        """
        attached, config, client = self.attached, self.config, participant.client_id
        work = self.task.work(number, client)
        begin_local_training(attached.model, attached.optimizer, config.local, number)
        if work.shards is not None:
            assert isinstance(attached.model, Sharded)
            attached.model.take(work.shards)
        retrieves = any(segment.retrieve for segment in participant.plan.segments)
        rows: Mapping[str, Ids] | None = dict(work.rows) if retrieves else None
        _seed_torch(dropout_seed(config, number, client), config.device)
        with attached.engine.round(
            participant,
            rows=rows,
            handle=attached.handle,
            number=number,
            rounding_seed=rounding_seed(config, number, client),
            residual=residual,
        ) as training_round:
            if not drops_out:
                train(attached.model, attached.optimizer, work, config.local)
        try:
            training_round.submit()
        except DroppedOut:
            return 0
        assert training_round.clip_report is not None
        return training_round.clip_report.num_clipped


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
