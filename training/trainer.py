"""The loop over rounds, the same for every task and every aggregation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from torchfsl.engine.residual import Residual
from torchfsl.submodel.aggregation import Participant, Receipt
from torchfsl.types import Array
from training.aggregations.dropout import Dropout
from training.central import CentralTraining
from training.clients import Clients, Job, dropout_seed, rounding_seed
from training.config import Config
from training.data.prf import Stream
from training.federation import Federation, listing_of
from training.section_checks import ConfigError
from training.seeded_noise import spent
from training.tasks.recommendation import INPUTS
from training.tasks.task import Task
from training.together import Member, Together
from training.workers import Workers


@dataclass(slots=True)
class RoundRecord:
    """One line of `metrics.jsonl`.

    Attributes:
        round: from 1.
        metrics: of the evaluation after this round; empty where it does not evaluate.
        upload_bytes: mean a client, to all servers together.
        download_bytes: mean a client, from all servers together.
        phases: the same bytes by the aggregation's phase, mean a client.
        phases_by_width: by width that of its clients; empty where all are alike.
        dropouts: clients that started the round and never submitted; they count in the means.
        client_seconds: mean a client: training and cryptography.
        server_seconds: all servers together, for the whole round.
        exact: see `Audit`; None where nothing is summed.
        exact_retrieval: see `Audit`.
        clipped_values: values of all clients that the fixed-point range cut.
    """

    round: int
    metrics: dict[str, float] = field(default_factory=dict)
    upload_bytes: float = 0.0
    download_bytes: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    phases_by_width: dict[str, dict[str, float]] = field(default_factory=dict)
    dropouts: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    exact: bool | None = False
    exact_retrieval: bool | None = None
    clipped_values: int = 0


class Trainer:
    """Runs the rounds of one experiment.

    Args:
        config: settings.
        task: clients, model, test.
        federation: what the rounds run on.
        residuals: unsent updates by client, kept for clients that participated.
        mean: mean of the models of earlier rounds; None if `server.average` asks for none.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        federation: Federation,
        residuals: dict[int, Residual] | None = None,
        mean: MeanModel | None = None,
    ) -> None:
        self.config, self.task, self.federation = config, task, federation
        self.residuals = {} if residuals is None else residuals
        self.mean = mean
        self._together: Together | None = None
        self._central: CentralTraining | None = None
        self._clients = Clients(config, task, federation.attached)
        self._workers: Workers | None = None
        self._listing = listing_of(config, task)

    def run(self, first_round: int, done: Callable[[RoundRecord], bool | None]) -> None:
        """Run the rounds from `first_round` on; calls `done` after each, and True stops."""
        try:
            for number in range(first_round, self.config.rounds + 1):
                record = self.run_round(number)
                if self.mean is not None:
                    self.mean.add(number, self.federation.server_model.state)
                if self._evaluates(number):
                    record.metrics = self.evaluate()
                    record.metrics |= spent(
                        self.config, self.federation.plan, number, self._listing
                    )
                if self._ranks(number):
                    record.metrics |= self.measure(self.task.final_test)
                if done(record):
                    return
        finally:
            self.close()

    def close(self) -> None:
        """End the workers, where there are any; rounds that follow start others."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def evaluate(self) -> dict[str, float]:
        """The task's metrics of the servers' model, and those of the mean model as `mean_...`.

        Raises:
            ConfigError: what curves show is not among them.
        """
        found = self.measure(self.task.evaluate)
        if self.task.metric not in found:
            raise ConfigError(
                f"the metric of the task is {self.task.metric!r}, and its evaluate() returns "
                f"{', '.join(map(repr, found)) or 'nothing'}: choose one of these figures as the "
                "metric"
            )
        return found

    def measure(self, figures: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
        """Any figures of the servers' model, and those of the mean model as `mean_...`."""
        self.federation.load_global_model()
        self.federation.model.eval()
        found = _checked(figures(self.federation.model))
        if self.mean is not None:
            self.federation.load(self.mean.state)
            of_mean = _checked(figures(self.federation.model))
            found |= {f"mean_{name}": value for name, value in of_mean.items()}
            self.federation.load_global_model()
        return found

    def cohort(self, number: int) -> list[int]:
        """The clients of a round, increasing: a function of (seed, round)."""
        if self.task.widths is not None:
            return self.task.widths.cohort(number)
        if self.config.privacy.limits_cohorts:
            order = Stream(self.config.seed, "cohorts").permutation(self.task.num_clients)
            size = self.config.clients_per_round
            places = np.arange((number - 1) * size, number * size) % len(order)
            return sorted(order[places].tolist())
        stream = Stream(self.config.seed, "cohort", number)
        chosen = stream.choice(self.task.num_clients, self.config.clients_per_round)
        return [int(client) for client in chosen]

    def run_round(self, number: int) -> RoundRecord:
        """Let every client of the cohort train and submit, and apply the sum."""
        record, audit = RoundRecord(number), self.federation.audit
        cohort = self.cohort(number)
        if self.config.aggregation == "central":
            return self._run_central(number, cohort)
        gone = self.dropouts(number, cohort)
        if self.federation.noise is not None:
            self.federation.noise.begin(number)
        start = time.perf_counter()
        audit.open_round(number, cohort)

        def done(num_clipped: int) -> None:
            record.clipped_values += num_clipped

        run = self._run_together if self.config.local.together else self._run_clients
        run(number, cohort, gone, done)
        receipts = audit.close_round().receipts
        trained = time.perf_counter() - start - audit.aggregation.server_seconds
        record.exact, record.exact_retrieval = audit.exact, audit.exact_retrieval
        record.upload_bytes = float(np.mean([r.upload_bytes for r in receipts.values()]))
        record.download_bytes = float(np.mean([r.download_bytes for r in receipts.values()]))
        record.phases = mean_phases(list(receipts.values()))
        if (widths := self.task.widths) is not None:
            record.phases_by_width = {
                name: mean_phases([r for c, r in receipts.items() if widths.of(c) == place])
                for place, name in enumerate(widths.names)
            }
        record.dropouts = len(gone)
        record.client_seconds = trained / len(cohort)
        record.server_seconds = audit.aggregation.server_seconds
        return record

    def _run_central(self, number: int, cohort: list[int]) -> RoundRecord:
        """The samples of a cohort, trained in one place."""
        start = time.perf_counter()
        if self._central is None:
            self._central = CentralTraining(
                self.task,
                self.federation.server_model,
                self.config.local,
                pads=self.config.is_recommender,
            )
        works = [self.task.work(number, client) for client in cohort]
        self._central.run(number, works, Stream(self.config.seed, "central", number))
        seconds = (time.perf_counter() - start) / len(cohort)
        return RoundRecord(number, client_seconds=seconds, exact=None)

    def dropouts(self, number: int, cohort: list[int]) -> set[int]:
        """The clients of a cohort that never submit: a function of (seed, round)."""
        stream = Stream(self.config.seed, "dropouts", number)
        return {cohort[place] for place in stream.choice(len(cohort), self.config.num_dropouts)}

    def _run_together(
        self, number: int, cohort: list[int], gone: set[int], done: Callable[[int], None]
    ) -> None:
        """As `_run_clients`, but clients' gradients are taken in batches."""
        if self._together is None:
            model, plan = self.task.build_model(), self.federation.plan
            self._together = Together(model, plan, self.config.local, INPUTS)
        members = [
            Member(
                self._participant(client, gone),
                self.task.work(number, client),
                dropout_seed(self.config, number, client),
                rounding_seed(self.config, number, client),
            )
            for client in cohort
        ]

        self._together.run(number, members, done)

    def _run_clients(
        self, number: int, cohort: list[int], gone: set[int], done: Callable[[int], None]
    ) -> None:
        """One after the other, or side by side in workers."""
        jobs = (
            Job(self._participant(client, gone), self._residual(client), client in gone)
            for client in cohort
        )

        if self.config.workers > 1:
            if self._workers is None:
                self._workers = Workers(self.config, self.federation.plan)
            self._workers.run(number, jobs, done)
        else:
            self._clients.run_all(number, jobs, done)

    def _participant(self, client: int, gone: set[int]) -> Participant:
        participant = self.federation.audit.participant(client)
        return Dropout(participant) if client in gone else participant

    def _residual(self, client: int) -> Residual:
        return self.residuals.setdefault(client, Residual())

    def _evaluates(self, number: int) -> bool:
        due = number in (1, self.config.rounds) or number % self.config.eval_every == 0
        return due or self._ranks(number)

    def _ranks(self, number: int) -> bool:
        """Before the last round, after which the run does."""
        every = self.config.recommendation.rank_every if self.config.is_recommender else 0
        return every > 0 and number % every == 0 and number < self.config.rounds


def mean_phases(receipts: list[Receipt]) -> dict[str, float]:
    """Mean bytes per client by phase; a phase that a client did not reach counts as zero."""
    names = list(dict.fromkeys(name for receipt in receipts for name in receipt.phases))
    return {n: sum(r.phases.get(n, 0) for r in receipts) / len(receipts) for n in names}


def _checked(figures: object) -> dict[str, float]:
    """The task's figures as floats by name.

    Raises:
        ConfigError: it is something else, or a name is a column of `metrics.jsonl` already.
    """
    reserved = {field.name for field in dataclasses.fields(RoundRecord)}
    try:
        found = {str(name): float(value) for name, value in figures.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the task returned {figures!r} as figures, expected a dict from names to numbers: "
            "return for example {'accuracy': 0.5}"
        ) from error
    if taken := sorted(reserved & set(found)):
        raise ConfigError(
            f"the task returned figures with the names {', '.join(taken)}, which metrics.jsonl "
            "uses for other columns: choose other names"
        )
    return found


class MeanModel:
    """Running mean of models (Polyak and Juditsky, 1992), forgetting early ones exponentially.

    The model after round r enters with weight max(1 - keep, 1/r), so that the mean is the plain
    one for the first 1/(1 - keep) rounds and does not hang on the initial model. Servers and
    clients never see it: it is a function of published models and changes no round.

    Args:
        keep: weight of the past, in (0, 1).
        state: the mean so far, by name; none before the first round.
    """

    def __init__(self, keep: float, state: Mapping[str, Array] | None = None) -> None:
        """Go on from `state`."""
        self.keep = keep
        self.state: dict[str, Array] = dict(state or {})

    def add(self, round_number: int, state: Mapping[str, Array]) -> None:
        """Take in the model after a round, from 1 on; integer buffers are its own."""
        weight = max(1 - self.keep, 1 / round_number)
        for name, value in state.items():
            if name not in self.state or not np.issubdtype(value.dtype, np.floating):
                self.state[name] = value.copy()
            else:
                mean = self.state[name]
                mean += value.dtype.type(weight) * (value - mean)
