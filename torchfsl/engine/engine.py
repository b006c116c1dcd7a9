"""The torch engine: attach to a model, plan, and take part in rounds.

engine = torchfsl.SubmodelEngine(rows="auto", rest=torchfsl.Dense())
handle = engine.attach(model, optimizer)
plan = engine.plan(handle, max_clients=100, rows_per_client=512)
with engine.round(client, rows=ids) as rnd:
    train_one_epoch(model, optimizer, loader)
receipt = rnd.submit()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.choosing import block_bound
from torchfsl.engine.exchange import REST
from torchfsl.engine.handle import Handle
from torchfsl.engine.lookups import RowAdvice, advise
from torchfsl.engine.policies import BlockSample, Dense, RestPolicy, Rows
from torchfsl.engine.residual import Residual
from torchfsl.engine.round import TrainingRound
from torchfsl.engine.settings import check_settings, check_source, checked_encodings
from torchfsl.engine.specs import check_fixed, owned, segment_specs, width_specs
from torchfsl.engine.wanted import RowIds
from torchfsl.engine.watch.optimizers import as_optimizers
from torchfsl.engine.watch.table import Check, Source
from torchfsl.errors import ParameterError, whole_numbers
from torchfsl.fsl import Plan, PlanOptions, build_plan, explain  # protocols are named here only
from torchfsl.fsl.in_process import TwoServers
from torchfsl.sefl import PlanOptions as HomomorphicOptions
from torchfsl.sefl import SeflPlan
from torchfsl.sefl import build_plan as build_sefl_plan
from torchfsl.sefl import explain as sefl_explain
from torchfsl.sesa import PlanOptions as OneServerOptions
from torchfsl.sesa import SesaPlan, Width
from torchfsl.sesa import build_plan as build_sesa_plan
from torchfsl.sesa import explain as sesa_explain
from torchfsl.submodel.aggregation import Aggregation, Participant
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel

AggregationKind = Literal["fsl", "plain"]
MakeModel = Callable[[Mapping[str, Any]], ServerModel]
_DEFAULT_ENCODING = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)


class SubmodelEngine:
    """What is sent of a model, and how; attaches to any number of models.

    Args:
        rows: tables sent by row. `"auto"` takes every trained `nn.Embedding` and
            `nn.EmbeddingBag` weight, with `Rows()`; None takes none.
        rest: policy of all other trained parameters, flattened in `named_parameters` order.
        encoding: fixed-point parameters of plans made here.
        encodings: those of segments by their names in `explain` (`rows18`, `rest`), `rows` for all
            tables. A pattern (`attention.*`, or the name of one parameter) makes a segment of its
            own of the parameters of a dense rest that it fits; the first that fits counts.
        buffers: `local` leaves buffers (BatchNorm statistics) alone: they are neither sent nor
            loaded. `average` sends the change of floating-point buffers as a dense segment (with
            source `delta`).
        source: `delta` sends how the parameters changed over the round. `gradient` sends the sum
            of the gradients of the round's steps (FedSGD); the steps themselves then change
            nothing, neither parameters nor optimizer state.
        check: how untouched rows are checked at the end of a round: `checksum` (reads the tables
            twice a round), `sample` (256 rows) or `off`.
    """

    def __init__(
        self,
        *,
        rows: Literal["auto"] | Rows | None = "auto",
        rest: RestPolicy | None = None,
        encoding: FixedPoint = _DEFAULT_ENCODING,
        encodings: Mapping[str, FixedPoint] | None = None,
        buffers: Literal["local", "average"] = "local",
        source: Source = "delta",
        check: Check = "checksum",
    ) -> None:
        """Nothing happens before `attach`."""
        check_settings(rows, rest, encoding, buffers, source, check)
        self.rows: Rows | None = Rows() if isinstance(rows, str) else rows
        self.rest: RestPolicy = Dense() if rest is None else rest
        self.encoding, self.encodings = encoding, checked_encodings(encodings)
        self.buffers, self.source, self.check = buffers, source, check
        self._handles: WeakSet[Handle] = WeakSet()  # attached optimizers keep theirs alive

    def __getstate__(self) -> dict[str, Any]:
        """Pickling and copying keep the settings; handles belong to live models."""
        return {name: value for name, value in vars(self).items() if name != "_handles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """An engine that is attached to nothing."""
        vars(self).update(state, _handles=WeakSet())

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        local: Sequence[str] = (),
    ) -> Handle:
        """Put hooks on the model's embeddings and on its optimizers; nothing else changes.

        Attach a compiled model before its first call: hooks added later never fire in it.

        Args:
            model: any module.
            optimizer: the one that trains it, or all of them.
            local: names of parameters, buffers or modules (`users`, `head.2.weight`) that train
                but stay at the client: they are in no plan. Where one handle serves several client
                numbers, each finds its own in its rounds, and starts from those of now.

        Raises:
            ParameterError: it cannot work; the message names parameter, reason and remedy.
        """
        if not isinstance(model, nn.Module):
            raise ParameterError(
                f"attach(model, optimizer): {type(model).__name__} is no nn.Module"
            )
        optimizers = as_optimizers(optimizer)
        if isinstance(local, str):
            raise ParameterError(f"local={local!r} is one name: pass a list, local=[{local!r}]")
        handle = Handle(
            model, optimizers, rows=self.rows, rest=self.rest, check=self.check, local=local,
            average_buffers=self.buffers == "average", source=self.source, explain=_explain,
            parts=tuple(self.encodings) if isinstance(self.rest, Dense) else (),
        )  # fmt: skip
        self._handles.add(handle)
        return handle

    def plan(
        self,
        handle: Handle,
        *,
        rows_per_client: int | Mapping[str, int] | None = None,
        retrieve: bool | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plan:
        """A public plan for this model.

        Args:
            handle: from `attach`.
            rows_per_client: most rows a client fetches and sends, for every rows segment or by
                segment name; None takes the budget of the `Rows` policy.
            retrieve: whether clients fetch their rows privately instead of downloading the
                tables. By default yes where touched rows are sent, no where the policy chooses
                among all rows.
            **options: see `torchfsl.fsl.build_plan`; `max_clients` is needed. `max_epochs` above
                1 wants every policy `Fixed` or `Dense`.

        Raises:
            ParameterError: a budget is missing, or a limit exceeded.
        """
        _check_handle(handle)
        if whole_numbers(max_epochs=options.get("max_epochs", 1)) > [1]:
            check_fixed(handle.inventory, handle.rows, handle.rest)
        specs = segment_specs(
            handle.exchange, handle.rows, handle.rest, rows_per_client=rows_per_client,
            retrieve=retrieve, encodings=self.encodings,
        )  # fmt: skip
        plan = build_plan(specs, encoding=self.encoding, **options)
        if isinstance(handle.rest, BlockSample) and REST in handle.exchange.parts:
            block_bound(plan, plan.segment(REST))  # or rounds would find out
        return plan

    def advise(self, handle: Handle, clients: Iterable[RowIds]) -> RowAdvice:
        """How many rows clients need: quantiles to print, and a budget for `plan`.

        Args:
            handle: from `attach`.
            clients: of each client what it would pass as `rows=`, as `handle.rows_of` finds it.

        Raises:
            ParameterError: no client, or ids that are none.
        """
        _check_handle(handle)
        return advise(handle.inventory.tables, clients)

    def aggregation(
        self,
        plan: SubmodelPlan,
        state: Mapping[str, Any],
        kind: AggregationKind = "fsl",
        server_model: MakeModel | None = None,
    ) -> Aggregation:
        """Both servers in this process (`fsl`), or a sum in the clear (`plain`).

        Args:
            plan: public plan.
            state: the initial model, `handle.server_state()`.
            kind: which.
            server_model: makes a server's model from the state; by default of what is sent.

        Raises:
            ParameterError: another kind, or a model that takes something else.
        """
        if kind == "fsl" and isinstance(plan, Plan):
            return TwoServers(
                plan, (self._model(state, server_model), self._model(state, server_model))
            )
        if kind == "plain":
            return Plain(plan, self._model(state, server_model))
        raise ParameterError(
            f"aggregation is {kind!r}: choose 'fsl', with what engine.plan gave, or 'plain'"
        )

    def _model(self, state: Mapping[str, Any], make: MakeModel | None) -> ServerModel:
        """One server's, of what this engine sends."""
        if make is None:
            return ServerModel(state, source=self.source)
        model = make(state)
        check_source(self.source, model.source)
        return model

    def sesa_plan(
        self,
        handle: Handle,
        *,
        widths: Sequence[tuple[int | Mapping[str, int], int]],
        **options: Unpack[OneServerOptions],
    ) -> SesaPlan:
        """A public plan for one server and clients of different widths; see `torchfsl.sesa`.

        Rows of tables are the submodels: a client names those that it will train before it trains.

        Args:
            handle: from `attach`, of an engine with `rest=Dense()` and rows found by hooks.
            widths: for each class of clients, how many rows one of them trains (of every rows
                segment, or by segment name), and how many such clients a full round has.
            **options: see `torchfsl.sesa.build_plan`; `collusion` is needed.

        Raises:
            ParameterError: other policies, a budget is missing, or a limit exceeded.
        """
        _check_handle(handle)
        parts = handle.exchange, handle.rows, handle.rest
        specs = width_specs(*parts, [w for w, _ in widths], encodings=self.encodings)
        classes = [Width(owned(specs, rows), clients) for rows, clients in widths]
        return build_sesa_plan(specs, encoding=self.encoding, widths=classes, **options)

    def sefl_plan(self, handle: Handle, **options: Unpack[HomomorphicOptions]) -> SeflPlan:
        """A draft for an aggregator and a key holder, see `torchfsl.sefl`; they add their keys.

        Args:
            handle: from `attach`, of an engine with `rows=None` and `rest=Dense()`.
            **options: see `torchfsl.sefl.build_plan`; `max_clients` is needed.

        Raises:
            ParameterError: other policies, or a limit exceeded.
        """
        parts = handle.exchange, handle.rows, handle.rest
        specs = segment_specs(
            *parts, rows_per_client=None, retrieve=False, encodings=self.encodings
        )
        return build_sefl_plan(specs, encoding=self.encoding, **options)

    def the_handle(self, handle: Handle | None = None) -> Handle:
        """`handle`, or of None the only one that is attached.

        Raises:
            ParameterError: none is attached, or several.
        """
        attached = [h for h in self._handles if h.attached] if handle is None else [handle]
        if len(attached) != 1:
            count = len(attached)
            raise ParameterError(f"{count} models are attached to this engine: pass handle=")
        _check_handle(attached[0])
        return attached[0]

    def round(
        self,
        client: Participant,
        *,
        rows: RowIds | None = None,
        handle: Handle | None = None,
        number: int | None = None,
        rounding_seed: bytes | None = None,
        residual: Residual | None = None,
    ) -> TrainingRound:
        """One round of a client, as a context manager around its training.

        Args:
            client: bound to a plan of this engine.
            rows: the rows to fetch privately: ids of the only table, or a mapping from table name
                (`items.weight` or `items`) to ids; of each one array, or a list of several. Beyond
                the plan's k_max the first ones count. With `Rows(choose=Fixed(...))` these are
                fetched.
            handle: which attached model, where there are several.
            number: of the open round; by default the client asks the servers for it on entering.
            rounding_seed: secret of 16 bytes for rounding and `BlockSample`'s draws; None draws it.
            residual: what the client owes; by default the handle keeps one for each client number.

        Raises:
            ParameterError: no model is attached, or several and none was named.
        """
        handle = self.the_handle(handle)
        plan = getattr(client, "plan", None)
        if not isinstance(plan, SubmodelPlan) or not hasattr(client, "client_id"):
            raise ParameterError(
                f"engine.round(client): {type(client).__name__} is no client: pass "
                "torchfsl.Client(plan, servers, client_id=...); another one has plan and client_id"
            )
        return TrainingRound(
            handle, client, rows=rows, number=number, rounding_seed=rounding_seed, residual=residual
        )


def _check_handle(handle: object) -> None:
    if not isinstance(handle, Handle):
        raise ParameterError(
            f"{type(handle).__name__} is no handle: pass what engine.attach(model, optimizer) gave"
        )


def _explain(plan: SubmodelPlan) -> str:
    if isinstance(plan, SesaPlan):
        return sesa_explain.explain(plan)
    if isinstance(plan, SeflPlan):
        return sefl_explain.explain(plan)
    assert isinstance(plan, Plan)
    return explain.explain(plan)
