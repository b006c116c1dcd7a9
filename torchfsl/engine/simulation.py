"""A whole federation in one call: many clients on one model, in this process.

Everything a client keeps is kept apart: its residual, its personal parts (`attach(local=)`), and
the state of the local optimizer, which starts afresh in every round or is the client's own.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from torchfsl.crypto import kdf
from torchfsl.engine.engine import AggregationKind, MakeModel, SubmodelEngine
from torchfsl.engine.handle import Handle
from torchfsl.engine.round import TrainingRound
from torchfsl.engine.simulation_checks import (
    as_number,
    check_arguments,
    check_makers,
    check_plan,
    mean_loss,
    weights_of,
)
from torchfsl.engine.wanted import RowIds
from torchfsl.errors import ParameterError
from torchfsl.submodel.aggregation import Aggregation
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plain import add_to, withhold
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel

Data = TypeVar("Data")
OptimizerState = Literal["fresh", "own"]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of a simulation.

    Attributes:
        number: of the round, from 0.
        clients: numbers of those that took part.
        loss: mean of the finite numbers that `train` returned, as one client's NaN would hide
            the others'; NaN where there are none. The first client left out is warned of.
        metrics: what `evaluate` returned; empty in rounds without evaluation.
        upload_bytes: mean a client, everything counted.
        download_bytes: mean a client, everything counted.
        exact: the opened sums equal the plaintext sums of the clients' quantised updates, bit for
            bit. Always so without noise from the servers.
        seconds: of the round, without evaluation.
    """

    number: int
    clients: tuple[int, ...]
    loss: float
    metrics: dict[str, float]
    upload_bytes: float
    download_bytes: float
    exact: bool
    seconds: float

    def __str__(self) -> str:
        parts = [f"round {self.number}", f"loss {self.loss:.4f}", f"exact {self.exact}"]
        parts += [
            f"up {self.upload_bytes / 1e3:.1f} kB",
            f"down {self.download_bytes / 1e3:.1f} kB",
        ]
        return "  ".join([*parts, *(f"{k} {v:.4f}" for k, v in self.metrics.items())])


@dataclass(slots=True)
class History:
    """What a simulation did.

    Attributes:
        plan: the public plan.
        model: the servers' model; `model.state_dict()` gives torch tensors.
        rounds: in order.
    """

    plan: SubmodelPlan
    model: ServerModel
    rounds: list[RoundRecord] = field(default_factory=list)

    def column(self, name: str) -> list[float]:
        """A field, or a metric of the rounds that evaluated, in order."""
        if name in RoundRecord.__dataclass_fields__:
            return [getattr(record, name) for record in self.rounds]
        return [record.metrics[name] for record in self.rounds if name in record.metrics]


def simulate(
    engine: SubmodelEngine,
    handle: Handle,
    clients: Sequence[Data] | Mapping[int, Data],
    *,
    train: Callable[[Data], Any],
    rounds: int,
    rows: Callable[[Data], RowIds] | None = None,
    weight: Callable[[Data], int] | None = None,
    plan: SubmodelPlan | None = None,
    clients_per_round: int | None = None,
    aggregation: AggregationKind = "fsl",
    server_model: MakeModel | None = None,
    optimizer_state: OptimizerState = "fresh",
    evaluate: Callable[[], Mapping[str, float] | float] | None = None,
    evaluate_every: int = 1,
    seed: int = 0,
    progress: bool | Callable[[RoundRecord], object] = True,
) -> History:
    """Run rounds of federated learning; afterwards the model holds what the servers learnt.

    Args:
        engine: whose handle it is.
        handle: from `engine.attach(model, optimizer)`.
        clients: what each client trains on, by place or by client number.
        train: your own loop over the data of one client, with the model and optimizer that are
            attached; may return its loss.
        rounds: how many.
        rows: the ids that a client's data looks up, as `engine.round(rows=)` takes them. Needed
            where the plan retrieves rows.
        weight: by how much a client's update counts, as `rnd.submit(weight=)` takes it: a whole
            number in 1..max_weight of a plan with `lane="weight"`. Asked once a client before the
            first round; 1 by default.
        plan: public plan. By default `engine.plan` with a budget that fits every client, and tables
            that do not pay sent whole; with `weight` also with a weight lane.
        clients_per_round: drawn anew each round, from `seed`; all by default.
        aggregation: `fsl` runs both servers with all their messages; `plain` adds the same
            quantised updates in the clear, which is faster and ends with the same bits where the
            plan has no noise.
        server_model: makes each server's model from the initial state, to choose its optimizer,
            a new one at each call; by default plain SGD, of what the engine sends.
        optimizer_state: `fresh` gives every client, in every round, the optimizer's state of now;
            `own` keeps one for each client, in memory.
        evaluate: called after rounds, while the model holds what the servers learnt.
        evaluate_every: rounds between evaluations; the last round always evaluates.
        seed: of the cohorts, of stochastic rounding and of the draws of `BlockSample`; in
            [0, 2**64).
        progress: print a line a round, or a function that takes its record.

    Raises:
        ParameterError: a setting does not fit, `train` or `evaluate` return no number, or a
            client's round failed; a note names the client.
    """
    check_makers(engine, handle, plan, train)
    data = dict(clients) if isinstance(clients, Mapping) else dict(enumerate(clients))
    size = len(data) if clients_per_round is None else clients_per_round
    check_arguments(data, size, rounds, evaluate_every, optimizer_state, seed)
    weights = None if weight is None else weights_of(data, weight)
    plan = _planned(engine, handle, data, rows, size, weights) if plan is None else plan
    check_plan(plan, size, rounds, weights or {})
    home = engine.aggregation(plan, handle.server_state(), aggregation, server_model)
    states = _OptimizerStates(handle, optimizer_state)
    federation = _Federation(
        engine, handle, data, train, rows, home, states, weights or {}, seed
    )  # fmt: skip
    history = History(plan, home.model)
    draw = np.random.Generator(np.random.Philox(seed))
    try:
        for number in range(rounds):
            chosen = sorted(draw.choice(sorted(data), size=size, replace=False).tolist())
            record = federation.round(number, chosen)
            if evaluate is not None and (number == rounds - 1 or number % evaluate_every == 0):
                handle.exchange.load(home.model.state)
                record = dataclasses.replace(record, metrics=_metrics(evaluate()))
            history.rounds.append(record)
            if callable(progress):
                progress(record)
            elif progress:
                print(record, flush=True)
    finally:  # an interrupted simulation leaves the servers' model, too
        handle.exchange.load(home.model.state)  # whatever is in it
    return history


def _planned(
    engine: SubmodelEngine,
    handle: Handle,
    data: Mapping[int, Data],
    rows: Callable[[Data], RowIds] | None,
    size: int,
    weights: Mapping[int, int] | None,
) -> SubmodelPlan:
    """A plan whose budget fits every client, with tables that do not pay sent whole."""
    budgets = None
    policy = handle.rows
    has_budget = policy is not None and (policy.budget is not None or policy.choice is not None)
    if rows is None and handle.inventory.tables and not has_budget:
        raise ParameterError(
            "how many rows may a client send? Pass rows=, each client's ids by table, from which "
            "simulate() makes a plan that fits all, or a plan= of your own"
        )
    if rows is not None and handle.inventory.tables:
        budgets = engine.advise(handle, (rows(one) for one in data.values())).rows_per_client()
    return engine.plan(
        handle, max_clients=size, min_clients=min(2, size), rows_per_client=budgets,
        above_break_even="dense", lane="none" if weights is None else "weight",
        max_weight=1 if weights is None else max(weights.values()),
    )  # fmt: skip


def _metrics(result: Mapping[str, float] | float) -> dict[str, float]:
    named = result if isinstance(result, Mapping) else {"metric": result}
    return {
        name: as_number("evaluate", value, "a number, or numbers by name")
        for name, value in named.items()
    }


class _OptimizerStates:
    """The state of local optimizers: of now for everyone, or each client's own."""

    def __init__(self, handle: Handle, kind: OptimizerState) -> None:
        self._optimizers, self._kind = handle.optimizers, kind
        self._first = [copy.deepcopy(o.state_dict()["state"]) for o in self._optimizers]
        self._of: dict[int, list[Any]] = {}
        self._here: int | None = None

    def switch_to(self, client: int) -> None:
        if self._kind == "own" and self._here is not None:
            kept = [copy.deepcopy(o.state_dict()["state"]) for o in self._optimizers]
            self._of[self._here] = kept
        self._here = client
        states = self._of.get(client, self._first)
        for optimizer, state in zip(self._optimizers, states, strict=True):
            groups = optimizer.state_dict()["param_groups"]  # of now: a schedule goes on
            optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": groups})


@dataclass(slots=True)
class _Federation(Generic[Data]):
    """What rounds share."""

    engine: SubmodelEngine
    handle: Handle
    data: Mapping[int, Data]
    train: Callable[[Data], Any]
    rows: Callable[[Data], RowIds] | None
    home: Aggregation
    states: _OptimizerStates
    weights: Mapping[int, int]
    seed: int
    has_warned: bool = False

    def round(self, number: int, chosen: list[int]) -> RoundRecord:
        """One round of these clients; the record has no metrics yet."""
        start = time.perf_counter()
        self.home.open_round(number, chosen)
        finished, losses = [], {}
        for client in chosen:
            self.states.switch_to(client)
            try:
                rnd, loss = self._take_part(number, client)
                if loss is not None:
                    losses[client] = as_number("train", loss, "a number, loss.item(), or nothing")
            except Exception as error:
                error.add_note(f"This was client {client} in round {number} of simulate().")
                raise
            finished.append(rnd)
        opened = self.home.close_round().opened
        self._warn_of_odd(number, losses)
        receipts = [rnd.receipt for rnd in finished if rnd.receipt is not None]
        return RoundRecord(
            number=number,
            clients=tuple(chosen),
            loss=mean_loss(losses),
            metrics={},
            upload_bytes=float(np.mean([r.upload_bytes for r in receipts])),
            download_bytes=float(np.mean([r.download_bytes for r in receipts])),
            exact=self._is_exact(dict(zip(chosen, finished, strict=True)), opened),
            seconds=time.perf_counter() - start,
        )

    def _warn_of_odd(self, number: int, losses: Mapping[int, float]) -> None:
        """Name the first client whose loss is NaN or infinite, once in a simulation."""
        odd = [client for client, loss in losses.items() if not math.isfinite(loss)]
        if odd and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"client {odd[0]}: its loss in round {number} is {losses[odd[0]]}; the rounds' "
                "losses are means without such numbers",
                stacklevel=4,
            )

    def _take_part(self, number: int, client: int) -> tuple[TrainingRound, Any]:
        data = self.data[client]
        ids = None
        if self.rows is not None and any(s.retrieve for s in self.home.plan.segments):
            ids = self.rows(data)
        participant = self.home.participant(client)
        path = f"{self.seed} {number} {client}".encode()
        coins = kdf.digest(kdf.LABEL_ROUNDING, path)[: kdf.SEED_BYTES]
        with self.engine.round(
            participant, rows=ids, handle=self.handle, number=number, rounding_seed=coins
        ) as rnd:
            loss = self.train(data)
        rnd.submit(weight=self.weights.get(client, 1))
        return rnd, loss

    def _is_exact(self, finished: Mapping[int, TrainingRound], opened: Opened) -> bool:
        """Whether the sums are those of the clients' updates times their weights."""
        plan = self.home.plan
        lanes = {name: np.zeros_like(lane) for name, lane in opened.lanes.items()}
        sent = [
            (rnd.update, self.weights.get(client, 1))
            for client, rnd in finished.items()
            if rnd.update is not None
        ]
        for name, lane in lanes.items():
            for update, weight in sent:
                lane[update[name].positions] += weight
        for segment in plan.segments:
            total = np.zeros((segment.index_space, segment.tau), dtype=np.int64)
            for update, weight in sent:
                add_to(total, update, segment, weight)
            withhold(plan, {segment.name: total}, lanes)
            if not np.array_equal(opened.sums[segment.name].reshape(total.shape), total):
                return False
        return all(np.array_equal(opened.lanes[name], lane) for name, lane in lanes.items())
