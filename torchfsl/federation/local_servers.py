"""The servers of a task in this process, for trying out, tests and simulations.

Which servers follows from the plan: both servers of `fsl` (or, as `plain`, a sum without any
protection), the one server of `sesa`, aggregator and key holder of `sefl`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch

from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError, ProtocolError, expect_able
from torchfsl.faces import public
from torchfsl.federation.privacy_state import PrivacyState
from torchfsl.federation.results import RoundResult, mean_loss
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.noise import BothServers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.sefl.round import AggregatorAndKeyHolder
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.sesa.round import OneServer
from torchfsl.sesa.sesa_plan import SesaPlan
from torchfsl.submodel.aggregation import Aggregation, Participant, Receipt
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plain import Plain, PlainSum
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerOptimizer
from torchfsl.submodel.update import Update
from torchfsl.types import Array

Kind = Literal["fsl", "plain"]


class OptimizerMaker(Protocol):
    """Describes the servers' optimizer, as `torchfsl.optim.Adam(0.01)` does."""

    def build(self) -> ServerOptimizer:
        """A new optimizer; each server has its own."""


@public
class LocalServers:
    """All servers of a task, in this process. Made by `Federated.local_servers`.

    Attributes:
        plan: the public plan.
        number: number of the open round, or of the last one; -1 before the first.
        closed: number of the last round that closed with sums; -1 before the first.
    """

    def __init__(self, home: Aggregation, *, has_reports: bool = False) -> None:
        """Hold the servers `home`.

        With `has_reports` a plan with noise needs `load_state_dict` before a round.
        """
        self.plan, self._home, self._privacy = home.plan, home, PrivacyState(home)
        self.number = self.closed = -1
        self._open: _OpenRound | None = None
        self._has_lost_count = has_reports and bool(self._privacy.save())

    def __repr__(self) -> str:
        state = "open" if self._open else "idle"
        return f"LocalServers({type(self._home).__name__}, round {self.number} {state})"

    @property
    def model(self) -> ServerModel:
        """The servers' model."""
        return self._home.model

    @contextlib.contextmanager
    def round(self, clients: Collection[int] = ()) -> Iterator[RoundResult]:
        """Open a round, for the clients' blocks; leaving closes it and updates the model.

        An exception in the block ends the round unopened.

        Args:
            clients: numbers of the clients to come; needed by `sesa` and `sefl` alone.

        Yields:
            The result, which is complete once the block is left.

        Raises:
            ParameterError: these servers do not know what clients have reported before.
            ProtocolError: a round is open, or too few clients participated; the model is as before.
        """
        if self._has_lost_count:
            raise ParameterError(
                "clients have reported under this plan before, and new servers count from 0: call "
                "servers.load_state_dict(earlier_servers.state_dict()), or make a new Federated",
                code="budget-unknown",
            )
        if self._open is not None:
            raise ProtocolError(
                f"round {self.number} is open: leave its block before the next round begins"
            )
        result, start = RoundResult(self.number + 1), time.perf_counter()
        self._home.open_round(result.number, clients)
        self.number, self._open = result.number, _OpenRound(self.plan)
        try:
            try:
                yield result
            except BaseException:
                self._home.abandon_round()
                raise
            closed = self._home.close_round()
            self.closed = self.number
            self._open.fill(result, closed.opened, closed.receipts, self._noise())
            result.seconds = time.perf_counter() - start
        finally:
            self._open = None

    def participant(self, client_id: int) -> Participant:
        """The client with number `client_id`, in the open round.

        Raises:
            ProtocolError: if no round is open.
        """
        if self._open is None:
            raise ProtocolError("no round is open: wrap the clients in `with servers.round():`")
        return self._home.participant(client_id)

    def check_closed(self) -> None:
        """Refuse to read the model while a round is open, which has not changed it yet.

        Raises:
            ProtocolError: a round is open.
        """
        if self._open is not None:
            raise ProtocolError(
                f"round {self.number} of these servers is open, and its updates are not in their "
                "model yet: call fed.load(servers) after the block of servers.round()"
            )

    def may_report(self, client_id: int) -> bool:
        """Whether the plan's participation limits allow client `client_id` in the next round."""
        return self._privacy.may_report(client_id)

    def submitted(self, finished: Round) -> None:
        """Take note of a round that was sent, `finished`; `Federated.round` calls it."""
        if self._open is not None:
            self._open.note(finished)

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer and round number, for `torch.save`; `torch.load` takes it as safe."""
        model = self._home.model
        return {
            "number": self.number,
            "plan": self.plan.digest.hex(),
            "model": {name: torch.tensor(value) for name, value in model.state.items()},
            "optimizer_kind": type(model.optimizer).__name__,
            "optimizer": {n: torch.tensor(value) for n, value in model.optimizer.state().items()},
            "privacy": {n: torch.tensor(value) for n, value in self._privacy.save().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the `state` that `state_dict` returned.

        Raises:
            ParameterError: if it is of another model, another plan with noise, or another kind of
                optimizer.
            ProtocolError: if a round is open.
        """
        if self._open is not None:
            raise ProtocolError(
                f"round {self.number} is open: call load_state_dict() before or after the block of "
                "the round"
            )
        if not isinstance(state, Mapping) or {"number", "model", "optimizer"} - {*state}:
            raise ParameterError(
                "servers.load_state_dict() expects the result of servers.state_dict(), got another "
                f"{type(state).__name__}. The result of fed.state_dict() belongs to "
                "fed.load_state_dict()"
            )
        noise = state.get("privacy") or {}
        if noise and state.get("plan", self.plan.digest.hex()) != self.plan.digest.hex():
            raise ParameterError(
                "expected the servers' state of this plan, got the state of another plan: set "
                "fed.plan to that plan, and call fed.local_servers() again",
                code="another-task",
            )
        if any(set(model.state) != set(state["model"]) for model in self._home.models):
            raise ParameterError(
                "expected the servers' state of this model, got a state with other tensors: pass "
                "the state of servers of this model"
            )
        kind = type(self._home.model.optimizer).__name__
        if (had := state.get("optimizer_kind", kind)) != kind:
            raise ParameterError(
                f"these servers expect the state of {kind}, got the state of {had}: call "
                "fed.local_servers(server_optimizer=...) with the optimizer of that state",
                code="optimizer-state",
            )
        self._privacy.load(noise)
        self._has_lost_count = False
        for model in self._home.models:
            for name, value in state["model"].items():
                model.state[name][...] = _array(value)
            moments = {name: _array(value).copy() for name, value in state["optimizer"].items()}
            model.optimizer.load_state(moments)
        self.number = self.closed = int(state["number"])

    def _noise(self) -> Mapping[str, Array]:
        """By segment what the servers added to the sums; only a process that plays both knows."""
        sums: Callable[[], Mapping[str, Array]] | None = getattr(self._home, "noise_sums", None)
        return {} if sums is None else sums()


def _array(value: Any) -> Array:
    """A tensor of a checkpoint, or an array."""
    found: Array = torch.as_tensor(value).numpy()
    return found


class _OpenRound:
    """The updates of a round, added up in the clear."""

    def __init__(self, plan: SubmodelPlan) -> None:
        self._sum = PlainSum(plan)
        self._losses: dict[int, float] = {}
        self._sent: set[int] = set()

    def note(self, finished: Round) -> None:
        update: Update | None = finished.update
        assert update is not None
        unmatched = finished.receipt.unmatched if finished.receipt else {}
        self._sum.add(finished.client_id, update, int(finished.weight), unmatched)
        self._sent.add(finished.client_id)
        if finished.loss is not None:
            self._losses[finished.client_id] = finished.loss

    def fill(
        self,
        result: RoundResult,
        opened: Opened,
        receipts: Mapping[int, Receipt],
        noise: Mapping[str, Array],
    ) -> None:
        result.clients, result.num_clients = opened.clients, opened.num_clients
        result.failed = tuple(one for one in opened.clients if one not in self._sent)
        result.sums, result.counts, result.scaled = opened.sums, opened.lanes, opened.scaled
        result.loss = mean_loss(self._losses)
        spent = [receipts[client] for client in opened.clients if client in receipts]
        if spent:
            result.upload_bytes = float(np.mean([one.upload_bytes for one in spent]))
            result.download_bytes = float(np.mean([one.download_bytes for one in spent]))
        if self._sent <= set(opened.clients):
            result.matches_plain = self._sum.equals(opened, noise)


def make_servers(
    plan: SubmodelPlan,
    state: Mapping[str, Array],
    *,
    optimizer: OptimizerMaker,
    source: Literal["delta", "gradient"],
    protocol: Kind = "fsl",
    widths: Mapping[int, int] | None = None,
) -> Aggregation:
    """The servers of a plan, in this process.

    Args:
        plan: of any protocol.
        state: initial model.
        optimizer: of the servers.
        source: what clients send.
        protocol: `plain` adds the same integers in the clear, without any protection.
        widths: under `sesa` by client number its class; by default all are of class 0.

    Raises:
        ParameterError: an unknown protocol, or no optimizer.
    """
    remedy = (
        "pass torchfsl.optim.SGD(1.0, momentum=0.9), torchfsl.optim.Adam(0.01), or "
        "torchfsl.optim.from_torch(make)"
    )
    expect_able(("build",), optimizer, "server_optimizer", remedy)

    def model() -> ServerModel:
        return ServerModel(state, optimizer.build(), source=source)

    if protocol not in ("fsl", "plain"):
        raise ParameterError(
            f"protocol is {protocol!r}: choose 'fsl' (all messages of the plan's protocol) or "
            "'plain' (a sum without any protection)"
        )
    if protocol == "plain":
        if isinstance(plan, Plan) and plan.noise_sigma:
            return Plain(plan, model(), BothServers(plan))
        return Plain(plan, model())
    if isinstance(plan, SesaPlan):
        return OneServer(plan, model(), {} if widths is None else widths)
    if isinstance(plan, SeflPlan):
        return AggregatorAndKeyHolder(plan, model())
    assert isinstance(plan, Plan)
    return TwoServers(plan, (model(), model()))
