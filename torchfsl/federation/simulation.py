"""A whole federation in one call: many clients on one model, in this process.

Everything that a client keeps is kept apart: its residual, its local parts, its optimizer state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from torchfsl.crypto import kdf
from torchfsl.engine.lookups import RowIds, by_table
from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError, as_number, expect_a, expect_able, expect_call, noting
from torchfsl.faces import outside, public
from torchfsl.federation.checkpoints import check_seed, checkpoint_of, go_on, keep, take_plan
from torchfsl.federation.federated import Federated
from torchfsl.federation.local_servers import Kind, LocalServers, OptimizerMaker
from torchfsl.federation.results import RoundResult, SimulationResult
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.update import check_weight, is_whole

Data = TypeVar("Data")
Sampler = Callable[[int, Sequence[int], np.random.Generator], Sequence[int]]
"""Takes the round's number, all client numbers and a generator; gives those of the round."""

_CALLS = (
    *("train(data)", "batches(data)", "rows(data)", "weight(data)"),
    *("evaluate()", "evaluate_client(data)", "sampler(round_number, clients, generator)"),
)
"""The functions that `simulate` takes, as it calls them."""

OptimizerState = Literal["fresh", "own"]


@public
def simulate(
    fed: Federated,
    clients: Sequence[Data] | Mapping[int, Data],
    train: Callable[[Data], Any],
    *,
    rounds: int,
    batches: Callable[[Data], Any] | None = None,
    rows: Callable[[Data], RowIds] | None = None,
    weight: Callable[[Data], int] | None = None,
    clients_per_round: int | None = None,
    sampler: Sampler | Literal["cyclic"] | None = None,
    protocol: Kind = "fsl",
    server_optimizer: OptimizerMaker | None = None,
    widths: Mapping[int, int] | None = None,
    optimizer_state: OptimizerState = "fresh",
    evaluate: Callable[[], Mapping[str, float] | float] | None = None,
    evaluate_client: Callable[[Data], Mapping[str, float] | float] | None = None,
    evaluate_every: int = 1,
    seed: int = 0,
    resume: SimulationResult | Mapping[str, Any] | str | Path | None = None,
    save: str | Path | None = None,
    progress: bool | Callable[[RoundResult], object] = True,
) -> SimulationResult:
    """Run rounds of federated learning; afterwards the model holds what the servers learnt.

    Args:
        fed: the federated model. Without a plan one is made that fits all clients.
        clients: what each client trains on, by position or by client number.
        train: your own loop over the data of one client; may return its loss.
        rounds: number of rounds in all, those before `resume` included.
        batches: the batches of a client's data, to find the rows that it fetches; by default the
            data itself, as it is trained on.
        rows: instead, the ids that a client's data uses: faster.
        weight: how much a client counts under `average="weight"`: a whole number from 1. Asked once
            for each client before the first round. Without a plan it changes the average
            `clients`, with a warning.
        clients_per_round: drawn anew each round, from `seed`; all by default.
        sampler: chooses the clients of a round instead; `cyclic` takes all in a fixed order drawn
            from `seed`, which keeps a plan's participation limits. Clients that the plan does not
            allow in a round are left out of it, and a warning counts them at the end.
        protocol: `fsl` runs the plan's protocol with all its messages; `plain` adds the same
            integers, and the noise of both servers, without cryptography: faster, bit-identical.
        server_optimizer: see `Federated.local_servers`.
        widths: see `Federated.local_servers`.
        optimizer_state: `fresh`: every client starts every round from the optimizer's state at the
            call. `own`: each client keeps its own state, in memory.
        evaluate: called after rounds, while the model holds what the servers learnt.
        evaluate_client: called after rounds with the data of every client, while the model holds
            what the servers learnt and the client's own local parts; means are recorded.
        evaluate_every: rounds between evaluations: 5 evaluates after 5, 10 and 15 rounds, and
            after the last one.
        seed: of cohorts, stochastic rounding and `BlockSample`, in [0, 2**64).
        resume: a result of the same simulation with fewer rounds, its `checkpoint`, or the file
            that `save` wrote.
        save: file for the checkpoint, written when the simulation ends or is interrupted.
        progress: show a bar, or a function that takes each round's result.

    Returns:
        The rounds, the final model and a checkpoint.

    Raises:
        ParameterError: an argument does not fit, `train` or `evaluate` return no number, or a
            client's round failed; a note names the client.
    """
    expect_a(Federated, fed, "the first argument", "call simulate(fed, clients, train, rounds=...)")
    expect_able(("__call__",), train, "train", "pass a function that takes a client's data")
    remedy = "pass a list of the clients' data, or a mapping from client numbers to data"
    expect_able(("__len__", "__getitem__"), clients, "clients", remedy)
    data = dict(clients) if isinstance(clients, Mapping) else dict(enumerate(clients))
    given = (train, batches, rows, weight, evaluate, evaluate_client, sampler)
    for function, form in zip(given, _CALLS, strict=True):
        expect_call(function, form)
    size = len(data) if clients_per_round is None else clients_per_round
    _check_arguments(data, size, rounds, evaluate_every, optimizer_state, seed)
    weights = {} if weight is None else _weights_of(data, weight)
    checkpoint = checkpoint_of(resume, save)
    take_plan(fed, checkpoint, by_weight=bool(weights))
    drawing = _sampler_of(sampler, size, seed)
    run = _Simulation(fed, data, train, batches, rows, weights, size, drawing, seed)
    run.make_plan()
    has_size = sampler in (None, "cyclic") or clients_per_round is not None
    _check_plan(fed.plan, size if has_size else fed.plan.max_clients, rounds, weights)
    run.warn_without_weights()
    servers = fed.local_servers(server_optimizer=server_optimizer, protocol=protocol, widths=widths)
    fed.hooks.states.mode = optimizer_state
    result = SimulationResult(fed.plan, servers.model.state)
    if checkpoint is not None:
        check_seed(checkpoint, seed)
        go_on(fed, servers, checkpoint, rounds)
        result.rounds += [RoundResult(**fields) for fields in checkpoint["rounds"]]
    evaluation = _Evaluation(fed, data, evaluate, evaluate_client, evaluate_every)
    with (
        _holding(result, fed, servers, seed, save),
        _shown(progress, rounds, servers.number + 1) as show,
    ):
        for number in range(servers.number + 1, rounds):
            finished = run.round(servers, number)
            if evaluation.is_due(number, rounds):
                fed.hooks.exchange.load(servers.model.state)
                finished.metrics = evaluation.metrics()
            result.rounds.append(finished)
            show(finished)
        run.warn_of_refused()
    return result


@contextlib.contextmanager
def _holding(
    result: SimulationResult,
    fed: Federated,
    servers: LocalServers,
    seed: int,
    save: str | Path | None,
) -> Iterator[None]:
    """Put the servers' model in place and keep all, also after an interruption."""
    try:
        yield
    finally:
        fed.hooks.states.put_back()
        fed.hooks.states.mode = "own"
        fed.hooks.exchange.load(servers.model.state)  # whatever is in it
        keep(result, fed, servers, seed, save)


@dataclass(slots=True)
class _Simulation(Generic[Data]):
    """State shared by the rounds."""

    fed: Federated
    data: Mapping[int, Data]
    train: Callable[[Data], Any]
    batches: Callable[[Data], Any] | None
    rows: Callable[[Data], RowIds] | None
    weights: Mapping[int, int]
    size: int
    sampler: Sampler
    seed: int
    has_warned: bool = False
    refused: int = 0

    def make_plan(self) -> None:
        """Complete a missing plan: budgets that fit every client, the largest weight."""
        if self.fed.planner.plan is not None:
            return
        options = self.fed.planner.options
        least, most = options["min_clients"], options["max_clients"] or self.size
        changes: dict[str, Any] = {"max_clients": most, "min_clients": min(least, most)}
        if least > most:
            warnings.warn(
                f"min_clients = {least} is lowered to {most}, the number of clients in a round"
                + ", so servers see a single client's update" * (most == 1)
                + f": simulate {least} clients or more",
                stacklevel=outside(),
            )
        if self.fed.planner.needs_rows:
            asked = []
            for client, one in self.data.items():
                with noting(f"This was client {client}, before round 0 of simulate()."):
                    asked.append(self.ids_of(one))
            changes["rows_per_client"] = self.fed.row_counts(asked).rows_per_client()
        if self.weights:
            changes |= self._by_weight()
        self.fed.make_plan(**changes)

    def _by_weight(self) -> dict[str, Any]:
        """Options of a plan for weights; a warning says that they change the average."""
        options = self.fed.planner.options
        most = options.get("max_weight") or max(self.weights.values())
        if options["average"] == "rows":
            raise ParameterError(
                "weight= needs average='weight', and Federated has average='rows': leave out "
                f"weight=, or pass average='weight', max_weight={most} to Federated",
                code="wrong-weight",
            )
        if options["average"] != "weight":
            warnings.warn(
                "weight= changes the average from 'clients' to 'weight', under which servers "
                "learn sums of weights and step by SGD(1) by default. Pass average='weight', "
                f"max_weight={most} to Federated",
                stacklevel=outside(),
            )
        return {"average": "weight", "max_weight": most}

    def ids_of(self, data: Data) -> Any:
        """The rows that a client fetches."""
        if self.rows is not None:
            return by_table(self.rows(data), self.fed.hooks.inventory.all_tables, [])
        given = data if self.batches is None else self.batches(data)
        try:
            return self.fed.rows_of(given)  # type: ignore[arg-type]
        except (RuntimeError, LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, IndexError) or "index_size" in str(error):  # of a frozen table
                raise ParameterError(
                    f"a client's data has an id outside its table, or is one batch ({error}): "
                    "number the ids from 0 to num_embeddings - 1, or pass a list of batches"
                ) from error
            if self.batches is not None or getattr(error, "code", "") == "row-out-of-range":
                raise
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            raise ParameterError(
                f"a client's data is of type {type(data).__name__}, expected a list of batches "
                f"with ids (torch.int64) first and labels last{cause}: pass rows=, or batches=, "
                "for example lambda data: [data]"
            ) from error

    @property
    def _has_fixed_rows(self) -> bool:
        """Whether clients fetch a fixed set of rows, whatever their batches use."""
        policy = self.fed.hooks.rows
        return policy is not None and policy.fixed is not None

    def round(self, servers: LocalServers, number: int) -> RoundResult:
        """One round; the result has no metrics yet."""
        draw = np.random.Generator(np.random.Philox(key=[self.seed, number]))
        every = sorted(self.data)
        drawn = _cohort(self.sampler(number, every, draw), every, servers.plan)
        chosen = [client for client in drawn if servers.may_report(client)]
        self.refused += len(drawn) - len(chosen)
        if len(chosen) < servers.plan.min_clients <= len(drawn):
            raise ParameterError(
                f"round {number}: the participation limits allow {len(chosen)} of {len(drawn)} "
                f"clients drawn, min_clients is {servers.plan.min_clients}: pass sampler='cyclic', "
                "and as many clients as you passed to privacy.calibrate",
                code="participation-limit",
            )
        losses: dict[int, float] = {}
        with servers.round(chosen) as result:
            for client in chosen:
                with noting(f"This was client {client} in round {number} of simulate()."):
                    rnd = self._participate(servers, number, client)
                if rnd.loss is not None:
                    losses[client] = rnd.loss
        self._warn_of_odd(number, losses)
        return dataclasses.replace(result, sums={}, counts={})

    def _participate(self, servers: LocalServers, number: int, client: int) -> Round:
        data = self.data[client]
        ids = None
        if any(s.retrieve for s in servers.plan.segments) and not self._has_fixed_rows:
            ids = self.ids_of(data)
        path = f"{self.seed} {number} {client}".encode()
        coins = kdf.digest(kdf.LABEL_ROUNDING, path)[: kdf.SEED_BYTES]
        weight = self.weights.get(client, 1)
        with self.fed.round(servers, client, rows=ids, weight=weight, rounding_seed=coins) as rnd:
            loss = self.train(data)
            rnd.loss = None if loss is None else as_number("train() returns", loss)
        return rnd

    def warn_without_weights(self) -> None:
        """Say that an average by weights gets none."""
        if self.fed.plan.lane == "weight" and not self.weights:
            warnings.warn(
                "average='weight' without weight=, so every client has weight 1: pass weight=, a "
                "function from a client's data to a whole number of 1 or more, such as weight=len",
                stacklevel=outside(),
            )

    def warn_of_refused(self) -> None:
        """Say how many reports the plan's participation limits refused."""
        if self.refused:
            warnings.warn(
                f"{self.refused} reports were refused: a client may send max_participations = "
                f"{self.fed.plan.max_participations} reports, min_separation = "
                f"{self.fed.plan.min_separation} rounds apart. Pass sampler='cyclic'.",
                stacklevel=outside(),
            )

    def _warn_of_odd(self, number: int, losses: Mapping[int, float]) -> None:
        """Name the first client whose loss is NaN or infinite, once in a simulation."""
        odd = [client for client, loss in losses.items() if not math.isfinite(loss)]
        if odd and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"the loss of client {odd[0]} in round {number} is {losses[odd[0]]}, so means "
                "leave it out: check this client's data, or lower the learning rate",
                stacklevel=outside(),
            )


@dataclass(slots=True)
class _Evaluation(Generic[Data]):
    """Metrics of the model between rounds."""

    fed: Federated
    data: Mapping[int, Data]
    whole: Callable[[], Mapping[str, float] | float] | None
    each: Callable[[Data], Mapping[str, float] | float] | None
    every: int

    def is_due(self, number: int, rounds: int) -> bool:
        """Whether a round is one of those after which the model is evaluated."""
        return number == rounds - 1 or (number + 1) % self.every == 0

    def metrics(self) -> dict[str, float]:
        """All of them."""
        found = {} if self.whole is None else _named("evaluate", self.whole())
        if self.each is None:
            return found
        parts: dict[str, list[float]] = {}
        for client, data in self.data.items():
            self.fed.hooks.personal.switch_to(client)
            with noting(f"This was client {client} in an evaluation of simulate()."):
                own = _named("evaluate_client", self.each(data))
            for name, value in own.items():
                parts.setdefault(name, []).append(value)
        return found | {name: math.fsum(values) / len(values) for name, values in parts.items()}


def _named(function: str, result: Mapping[str, float] | float) -> dict[str, float]:
    named = result if isinstance(result, Mapping) else {"metric": result}
    return {name: as_number(f"{function}() returns", value) for name, value in named.items()}


def _cohort(given: Any, every: Sequence[int], plan: SubmodelPlan) -> list[int]:
    """The clients that a sampler chose.

    Raises:
        ParameterError: they are not distinct client numbers, or not as many as the plan opens.
    """
    try:
        chosen = [operator.index(client) for client in given]
    except TypeError:
        chosen = []
    if not chosen or not set(chosen) <= set(every) or len(set(chosen)) < len(chosen):
        raise ParameterError(
            f"the sampler returned {given!r:.80}: return distinct client numbers from those that "
            "simulate() got"
        )
    if not plan.min_clients <= len(chosen) <= plan.max_clients:
        raise ParameterError(
            f"the sampler returned {len(chosen)} clients, and the plan expects min_clients = "
            f"{plan.min_clients} to max_clients = {plan.max_clients}: return a number of clients "
            "in this range"
        )
    return chosen


def _uniform(size: int) -> Sampler:
    def draw(number: int, every: Sequence[int], generator: np.random.Generator) -> list[int]:
        return sorted(generator.choice(every, size=size, replace=False).tolist())

    return draw


def _sampler_of(sampler: Sampler | str | None, size: int, seed: int) -> Sampler:
    if isinstance(sampler, str) and sampler != "cyclic":
        raise ParameterError(
            f"sampler is {sampler!r}: choose 'cyclic', None for random cohorts, or a function",
            code="unknown-option",
        )
    if sampler is None or isinstance(sampler, str):
        return _uniform(size) if sampler is None else _cyclic(size, seed)
    return sampler


def _cyclic(size: int, seed: int) -> Sampler:
    def take(number: int, every: Sequence[int], _: np.random.Generator) -> list[int]:
        order = np.random.Generator(np.random.Philox(key=[seed, 1 << 63])).permutation(every)
        places = np.arange(number * size, (number + 1) * size) % len(order)
        return sorted(order[places].tolist())

    return take


class _shown:
    """Shows rounds as they end: by tqdm where it is installed, else a line each."""

    def __init__(
        self, progress: bool | Callable[[RoundResult], object], rounds: int, first: int
    ) -> None:
        self._progress, self._rounds, self._first = progress, rounds, first
        self._bar: Any = None

    def __enter__(self) -> Callable[[RoundResult], None]:
        if self._progress is True:
            try:
                bars = importlib.import_module("tqdm.auto")
            except ImportError:
                return lambda result: print(result, flush=True)
            self._bar = bars.tqdm(  # none where stderr is not a terminal
                total=self._rounds, initial=self._first, unit="round", disable=None
            )
            return self._step
        return self._call

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _step(self, result: RoundResult) -> None:
        self._bar.write(str(result), file=sys.stdout)
        self._bar.update()

    def _call(self, result: RoundResult) -> None:
        if callable(self._progress):
            self._progress(result)


def _check_arguments(
    data: Mapping[int, Any], size: int, rounds: int, evaluate_every: int, state: str, seed: int
) -> None:
    """Refuse numbers out of range; `size` clients per round."""
    for client in data:
        check_number("a key of clients", client)
    numbers = {"clients_per_round": size, "rounds": rounds, "evaluate_every": evaluate_every}
    for name, number in (numbers | {"seed": seed}).items():
        check_number(name, number)
    if not 1 <= size <= len(data):
        raise ParameterError(
            f"clients_per_round is {size} and there are {len(data)} clients: choose a number from "
            f"1 to {len(data)}"
        )
    if rounds < 1 or evaluate_every < 1:
        raise ParameterError(
            f"rounds is {rounds} and evaluate_every is {evaluate_every}: choose 1 or more for both"
        )
    if state not in ("fresh", "own"):
        raise ParameterError(f"optimizer_state is {state!r}: choose 'fresh' or 'own'")


def _weights_of(data: Mapping[int, Data], weight: Callable[[Data], int]) -> dict[int, int]:
    """Every client's weight; those of a plan that is to be made are not checked elsewhere."""
    found: dict[int, int] = {}
    for client, one in data.items():
        given = weight(one)
        if not is_whole(given) or given < 1:
            raise ParameterError(
                f"client {client}: weight() returned {given!r}, expected a whole number of 1 or "
                "more: return the client's number of examples, for instance"
            )
        found[client] = int(given)
    return found


def _check_plan(plan: SubmodelPlan, size: int, rounds: int, weights: Mapping[int, int]) -> None:
    """Refuse what a round under this plan would only refuse in its middle."""
    if plan.max_rounds and rounds > plan.max_rounds:
        raise ParameterError(
            f"rounds is {rounds}, and the plan opens max_rounds = {plan.max_rounds}: choose fewer "
            f"rounds, or make a plan with max_rounds={rounds}"
        )
    if not plan.min_clients <= size <= plan.max_clients:
        raise ParameterError(
            f"a round would have {size} clients, and the plan expects min_clients = "
            f"{plan.min_clients} to max_clients = {plan.max_clients}: choose clients_per_round in "
            "this range, or make a plan with other limits"
        )
    for client, weight in weights.items():
        try:
            check_weight(plan, weight)
        except ParameterError as error:
            raise ParameterError(f"client {client}: {error}") from error
