"""One federated model: a torch model, its optimizer, the public plan, and rounds.

fed = torchfsl.Federated(model, optimizer, max_clients=20, rows_per_client=128)
servers = fed.local_servers()
with servers.round():
    for client_id, batches in clients.items():
        with fed.round(servers, client_id, batches=batches):
            train(model, optimizer, batches)
fed.load(servers)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Unpack

import numpy.typing as npt
import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.fetched import Fetcher, fetched_model
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.lookups import Call, RowAdvice, RowIds, advise, check_batches
from torchfsl.engine.policies import Dense, RestPolicy, Rows
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.engine.watch.table import Check, Source
from torchfsl.errors import ParameterError, ProtocolError, noting
from torchfsl.faces import public
from torchfsl.federation.local_servers import Kind, LocalServers, OptimizerMaker, make_servers
from torchfsl.federation.planning import (
    Average,
    Planner,
    check_average,
    check_options,
    check_plan,
    settings_from,
    specs_of,
)
from torchfsl.federation.results import RoundEstimate, state_of
from torchfsl.fsl.estimates.estimate import estimate
from torchfsl.fsl.estimates.measuring import Rates
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import ModelPlanOptions
from torchfsl.submodel.aggregation import Participant
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.segments import SegmentSpec

log = logging.getLogger("torchfsl.federation")

_OPTIONS = (*ModelPlanOptions.__annotations__, "retrieve")


class Servers(Protocol):
    """What `Federated.round` needs of servers; `LocalServers` and `connect(...)` offer it."""

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan."""

    @property
    def number(self) -> int | None:
        """Number of the open round; None if the client asks the servers for it."""

    def participant(self, client_id: int) -> Participant:
        """The client of that number."""

    def submitted(self, finished: Round) -> None:
        """Take note of a round whose update was sent."""


@public
class Federated:
    """A torch model that clients train together. Model, optimizer and loop stay as they are.

    Args:
        model: any module. A compiled model before its first call.
        optimizer: the one that trains it, or all of them.
        max_clients: most clients of a round. Needed for a plan, unless `plan` is given.
        rows_per_client: most embedding rows that a client fetches and sends: for every segment of
            tables, or by the name of a table or segment. `suggest_rows` finds it.
        plan: of the task, if another party made it (`connect(...).plan`); policies and encodings
            are taken from it.
        average: how the servers divide sums. `clients` divides by all clients of the round, and
            servers learn nothing more. `rows` divides each row by the clients that sent it, and
            servers learn these counts. `weight` divides by weights of clients, and servers learn
            the sums of weights of each row and of all reports.
        rows: policy of the tables that are sent by row: `auto` for every trained `nn.Embedding`
            and `nn.EmbeddingBag` whose `forward` is torch's own, a `Rows`, or None for none.
        rest: policy of all other parameters; `Dense()` when None.
        local: names of parameters, buffers or modules that train but stay at the client. Where
            several clients train this model, each has its own.
        min_clients: fewest clients whose sum is opened; 1 opens a single client's update.
        encoding: fixed-point parameters of all values; by default 32 bits, values up to 4, with as
            many fraction bits (at most 20) as so many clients leave room for.
        encodings: see `Settings`.
        buffers: see `Settings`.
        source: see `Settings`.
        check: see `Settings`.
        **options: more options of the plan, see `torchfsl.fsl.build_plan`; and `retrieve`, whether
            clients fetch their rows privately.

    Attributes:
        hooks: on the model; for tools that extend torchfsl.
        planner: options of the plan.

    Raises:
        ParameterError: it cannot work; the message names parameter, reason and remedy.
        TypeError: an unknown option.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        max_clients: int | None = None,
        rows_per_client: int | Mapping[str, int] | None = None,
        plan: SubmodelPlan | None = None,
        average: Average = "clients",
        rows: Literal["auto"] | Rows | None = "auto",
        rest: RestPolicy | None = None,
        local: Sequence[str] = (),
        min_clients: int = 2,
        encoding: FixedPoint | None = None,
        encodings: Mapping[str, FixedPoint] | None = None,
        buffers: Literal["local", "average"] = "local",
        source: Source = "delta",
        check: Check = "checksum",
        retrieve: bool | None = None,
        **options: Unpack[ModelPlanOptions],
    ) -> None:
        """Put hooks on the model's embeddings and on the optimizers; make the plan."""
        check_options("Federated", options, [*Federated.__init__.__annotations__, *_OPTIONS])
        check_average(average, {"max_weight": 1, **options})
        settings = Settings(
            rows=Rows() if rows == "auto" else rows,
            rest=Dense() if rest is None else rest,
            encoding=encoding,
            encodings=encodings or {},
            buffers=buffers,
            source=source,
            check=check,
        )
        if plan is not None:
            settings = settings_from(settings, plan, model, rest_given=rest is not None)
        self.hooks = Hooks(model, optimizer, settings, local=local)
        if left := self.hooks.exchange.left_buffers:
            log.warning(
                "%s and %d more buffers are neither sent nor loaded, so servers keep their first "
                "values: pass buffers='average' to average BatchNorm statistics",
                left[0],
                len(left) - 1,
            )
        self.planner = Planner(
            self.hooks,
            {"max_clients": max_clients, "rows_per_client": rows_per_client, "average": average,
             "min_clients": min_clients, "retrieve": retrieve, **options},
        )  # fmt: skip
        if plan is not None:
            self.plan = plan
        elif max_clients is not None and not self.planner.needs_rows:
            self.make_plan()

    def __repr__(self) -> str:
        plan = self.planner.plan
        return (
            f"Federated({type(self.model).__name__}, "
            f"{'no plan yet' if plan is None else repr(plan)})"
        )

    @property
    def model(self) -> nn.Module:
        """The torch model, without wrappers."""
        return self.hooks.model

    # --- the plan -----------------------------------------------------------------------------

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan. May be set until the first round, as by `torchfsl.sesa.plan(fed)`.

        Raises:
            ParameterError: there is none yet, or it is for another model.
            ProtocolError: set after the first round.
        """
        if self.planner.plan is None:
            raise ParameterError(self.planner.missing())
        return self.planner.plan

    @plan.setter
    def plan(self, plan: SubmodelPlan) -> None:
        check_plan(plan)
        if self.hooks.rounds:
            raise ProtocolError(
                "rounds have begun under the present plan: make a new Federated for another plan"
            )
        self.hooks.exchange.check_plan(plan)
        self.planner.take(plan)

    def make_plan(self, **changes: Any) -> Plan:
        """Make and return the plan from the options of this object and `changes` of them.

        For what is known only once the model is here:
        `fed.make_plan(rows_per_client=fed.suggest_rows(batches_of_clients))`.

        Raises:
            ParameterError: `max_clients` or a budget is missing, or a limit exceeded.
        """
        check_options("make_plan", changes, [*self.planner.options, *_OPTIONS])
        made = self.planner.make(changes)
        self.plan = made
        if made.lane != "none":
            log.warning("%s", made.discloses())
        return made

    def suggest_rows(
        self, clients: Iterable[Any] | Mapping[int, Any], quantile: float = 1.0
    ) -> dict[str, int]:
        """A `rows_per_client` that fits this share of clients.

        Args:
            clients: the batches of each client.
            quantile: share of clients, in (0, 1]; below 1 the others train on fewer batches.

        Returns:
            By segment a number of rows.
        """
        return self.row_counts(clients).rows_per_client(quantile)

    def row_counts(self, clients: Iterable[Any] | Mapping[int, Any]) -> RowAdvice:
        """How many distinct rows the batches of each client use; prints as quantiles.

        Args:
            clients: the batches of each client; or of each its ids by table name.
        """
        found: list[Any] = []
        for client, one in clients.items() if isinstance(clients, Mapping) else enumerate(clients):
            with noting(f"This was client {client} of the clients given."):
                found.append(one if isinstance(one, Mapping) else self.rows_of(one))
        return advise(self.hooks.inventory.tables, found)

    def rows_of(self, batches: Iterable[Any], *, call: Call | None = None) -> dict[str, Any]:
        """See `Hooks.rows_of`: by table name the distinct ids that batches look up.

        Args:
            batches: as the training loop gets them; labels that `forward` does not take are left
                out.
            call: how the model is called with a batch where that is different.
        """
        return self.hooks.rows_of(batches, call)

    def segment_specs(
        self,
        *,
        rows_per_client: int | Mapping[str, int] | None = None,
        retrieve: bool | None = None,
    ) -> list[SegmentSpec]:
        """The model's segments, as planners of other protocols take them.

        Args:
            rows_per_client: see the constructor.
            retrieve: whether clients fetch their rows privately.
        """
        return specs_of(self.hooks, rows_per_client=rows_per_client, retrieve=retrieve)

    @property
    def encoding(self) -> FixedPoint | None:
        """The encoding that was given, None for the default of each planner."""
        return self.hooks.settings.encoding

    def estimate(self, batches: Iterable[Any], *, rates: Rates | None = None) -> RoundEstimate:
        """The cost of a round for a client with these batches, before the first one.

        Args:
            batches: of one client.
            rates: speed of a core; when None, measured here, once in a process, in about a minute.

        Raises:
            ParameterError: there is no plan, or it is not for two servers.
        """
        plan = self.plan
        if not isinstance(plan, Plan):
            kind = type(plan).__name__
            raise ParameterError(f"estimate() is for torchfsl.Plan, not {kind}: use plan.explain()")
        used = advise(self.hooks.inventory.tables, [self.rows_of(batches)]).counts.items()
        found = estimate(plan, rates=rates)
        return RoundEstimate(
            {n: (int(c[0]), plan.segment(n).k_max) for n, c in used},
            found.upload_bytes,
            found.download_bytes,
            found.client_core_seconds,
            3600 * found.server_core_hours,
            plan.discloses(),
        )

    # --- rounds -------------------------------------------------------------------------------

    def local_servers(
        self,
        *,
        server_optimizer: OptimizerMaker | None = None,
        protocol: Kind = "fsl",
        widths: Mapping[int, int] | None = None,
    ) -> LocalServers:
        """The servers of the plan, in this process, with the model's present values.

        Args:
            server_optimizer: of `torchfsl.optim`; see `default_optimizer` for None.
            protocol: `fsl` runs the plan's protocol with all its messages; `plain` adds the same
                integers and the plan's noise in the clear: fast, bit-identical, unprotected.
            widths: under `sesa` by client number its class of width.

        Raises:
            ParameterError: there is no plan, or the model holds NaN or infinite values.
        """
        chosen = self.default_optimizer() if server_optimizer is None else server_optimizer
        state = self.hooks.server_state()
        home = make_servers(
            self.plan, state, optimizer=chosen, source=self.hooks.settings.source,
            protocol=protocol, widths=widths,
        )  # fmt: skip
        self.planner.warn_of_unused_noise()
        return LocalServers(home, has_reports=self.hooks.rounds > 0)

    def default_optimizer(self) -> OptimizerSettings:
        """The servers' optimizer where none is chosen.

        With deltas averaged by clients, SGD with rate 2.5 and momentum 0.8. A row that one of many
        clients changes then moves further than its share of the average: see docs/averages.md for
        the measurements. Else SGD with rate 1, under which the model is the average.
        """
        if self.hooks.settings.source == "delta" and self.planner.lane == "none":
            return OptimizerSettings(lr=2.5, momentum=0.8)
        return OptimizerSettings()

    def round(
        self,
        servers: Servers,
        client_id: int | None = None,
        *,
        batches: Iterable[Any] | None = None,
        rows: RowIds | None = None,
        weight: int = 1,
        rounding_seed: bytes | None = None,
    ) -> Round:
        """One client's round: a context manager around its own training loop.

        Entering fetches the model, leaving sends the update; an exception puts the model back and
        sends an all-zero report, which servers cannot tell from others.

        Args:
            servers: from `local_servers` or `torchfsl.connect`.
            client_id: number of the client; of a connection its own.
            batches: what the client trains on, to find the rows that it fetches; a list or a
                DataLoader, not an iterator.
            rows: instead of `batches` the ids: of the only table, or by table name.
            weight: of the client under `average="weight"`, in 1..max_weight.
            rounding_seed: secret of 16 bytes for stochastic rounding and `BlockSample`; for runs
                that are repeated. Drawn from the system when None.

        Raises:
            ParameterError: plan, rows or weight do not fit, or `servers` have an earlier plan.
            ProtocolError: no round is open.
        """
        if not hasattr(servers, "participant"):
            raise ParameterError(
                "expected servers from fed.local_servers() or torchfsl.connect(...), got "
                f"{type(servers).__name__}: call fed.round(servers, client_id, batches=batches)"
            )
        if batches is not None and rows is not None:
            raise ParameterError("pass batches= or rows=, not both")
        self.planner.check_servers(servers.plan)
        check_batches(batches)
        client_id = getattr(servers, "client_id", None) if client_id is None else client_id
        if client_id is None:
            raise ParameterError("pass the client's number: fed.round(servers, client_id, ...)")
        client_id = check_number("client_id", client_id)
        found: RowIds | Callable[[], RowIds] | None = rows
        if batches is not None and any(s.retrieve for s in servers.plan.segments):
            found = functools.partial(self.rows_of, batches)
        return Round(
            self.hooks, servers.participant(client_id), rows=found, number=servers.number,
            weight=weight, rounding_seed=rounding_seed, submitted=servers.submitted,
        )  # fmt: skip

    @contextlib.contextmanager
    def evaluating(
        self, servers: Fetcher, *, batches: Iterable[Any] | None = None, rows: RowIds | None = None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """The servers' model in the client's module while the block runs, by a private fetch.

        Args:
            servers: from `torchfsl.connect`.
            batches: what the evaluation uses, to find its rows.
            rows: instead of `batches` the ids.

        Yields:
            By table name the ids at hand: int64, increasing.
        """
        if batches is not None:
            rows = self.rows_of(batches)
        with fetched_model(self.hooks, servers, rows) as present:
            yield present

    # --- the model ----------------------------------------------------------------------------

    def server_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the tensors that servers hold, as NumPy arrays.

        Raises:
            ParameterError: a tensor holds NaN, as tables do after a private fetch, or inf.
        """
        return self.hooks.server_state()

    def load(self, servers: Any, *, only_missing: bool = False) -> None:
        """Write the servers' model into the torch model, in place.

        Args:
            servers: `LocalServers`, a `Coordinator`, a `SimulationResult`, or a mapping of arrays.
            only_missing: fill in only rows that are absent after private fetches.

        Raises:
            ParameterError: another object, or the model of another task.
            ProtocolError: a round is open.
        """
        state = state_of(servers)
        if only_missing:
            self.hooks.complete(state)
        else:
            self.hooks.load(state)

    def export(self, path: Any = None) -> dict[str, torch.Tensor]:
        """The whole model as a plain `state_dict`, buffers included, copied to the CPU.

        Args:
            path: also written there by `torch.save`.

        Raises:
            ParameterError: a tensor holds NaN or infinite values, as after a private fetch, or the
                file cannot be written.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of absent rows, which the check below names
            state = {n: v.detach().cpu().clone() for n, v in self.model.state_dict().items()}
        for name, value in state.items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ParameterError(
                    f"{name} has NaN or infinite values. After a private retrieval, all rows that "
                    "were not retrieved are NaN: call fed.load(servers) first"
                )
        if path is not None:
            try:
                torch.save(state, path)
            except (AttributeError, OSError, RuntimeError) as error:
                raise ParameterError(
                    f"export() cannot write {path!r} ({error}): name a file in a folder that exists"
                ) from error
        return state

    def state_dict(self) -> dict[str, Any]:
        """The rest of a checkpoint, next to the model: residuals, local parts, states by client."""
        plan = None if self.planner.plan is None else self.planner.plan.to_json()
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        return {**self.hooks.state_dict(), "plan": plan, "buffers": buffers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the `state` that `state_dict` returned.

        Raises:
            ParameterError: if it is another object's or another model's; nothing is changed then.
        """
        plan = self.planner.saved(state)
        own = {name: v for name, v in state.items() if name not in ("plan", "buffers")}
        self.hooks.load_state_dict(own)
        for name, value in self.model.named_buffers():
            if name in state.get("buffers", {}):
                value.copy_(state["buffers"][name])
        self.planner.plan = plan

    def detach(self) -> None:
        """Take all hooks away; the model and the optimizers are as before."""
        self.hooks.remove()

    # --- in words -----------------------------------------------------------------------------

    def explain(self, **options: Any) -> str:
        """`plan.explain(**options)`, the servers' step, and what rounds keep at a client."""
        memory, step = self.hooks.explain_memory(self.plan), self.default_optimizer()
        own = f"the servers' default optimizer: SGD({step.lr:g}, momentum={step.momentum:g})"
        head = "memory of a client in a round, in addition to its model:"
        return "\n".join([self.plan.explain(**options), own, head, *memory])
