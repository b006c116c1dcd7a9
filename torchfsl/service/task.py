"""A task as it is handed to a server: plan, nonce of its session, model, server optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state import arrays
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import OptimizerSettings
from torchfsl.types import Array

_MODEL, _OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True, slots=True)
class Task:
    """What both servers must be given alike.

    Attributes:
        plan: its session number must be `Authorities.session(nonce)`.
        nonce: 16 random bytes.
        optimizer: on the aggregate.
        source: see `ServerModel`.
        reduce: see `ServerModel`.
    """

    plan: Plan
    nonce: bytes
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    source: Literal["delta", "gradient"] = "delta"
    reduce: Literal["mean", "sum"] = "mean"

    def settings(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "plan": self.plan.to_json(),
            "nonce": self.nonce.hex(),
            "optimizer": dataclasses.asdict(self.optimizer),
            "source": self.source,
            "reduce": self.reduce,
        }

    @classmethod
    def from_settings(cls, fields: Mapping[str, Any]) -> Task:
        """Inverse of `settings`.

        Raises:
            DecodeError: a field is missing or wrong.
        """
        try:
            return cls(
                Plan.from_json(fields["plan"]),
                bytes.fromhex(fields["nonce"]),
                OptimizerSettings(**fields["optimizer"]),
                fields["source"],
                fields["reduce"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"not a valid task: {error}") from error

    def check(self, authorities: Authorities, min_clients: int) -> None:
        """Refuse a task for other servers, or one that opens sums over too few clients.

        Raises:
            ParameterError: either.
        """
        if len(self.nonce) != 16 or authorities.session(self.nonce) != self.plan.session:
            raise ParameterError(
                "the plan's session is not bound to these two servers' authorities: make it with "
                "`bind_plan`, and check that all sides hold the same ca-server-0 and ca-server-1"
            )
        if self.plan.min_clients < min_clients:
            raise ParameterError(
                f"the plan opens sums over {self.plan.min_clients} reports, this server's operator "
                f"wants {min_clients} or more"
            )

    def new_model(self, state: Mapping[str, Array], moments: Mapping[str, Array]) -> ServerModel:
        """A server's model from arrays.

        Raises:
            DecodeError: the moments are not those of such an optimizer on these tensors.
            ParameterError: a setting of the optimizer is out of range.
        """
        optimizer = self.optimizer.build()
        if moments:
            _check_moments(self.optimizer, moments, state)
            optimizer.load_state(moments)
        return ServerModel(state, optimizer, source=self.source, reduce=self.reduce)


def bind_plan(plan: Plan, authorities: Authorities, nonce: bytes) -> Plan:
    """The plan for these two servers: its session number names both."""
    return dataclasses.replace(plan, session=authorities.session(nonce))


def encode_task(
    task: Task, state: Mapping[str, Array], moments: Mapping[str, Array] | None = None
) -> bytes:
    """A task and its initial model for the servers; with the optimizer's state, if it goes on."""
    values = {_MODEL + name: value for name, value in state.items()}
    values |= {_OPTIMIZER + name: value for name, value in (moments or {}).items()}
    return arrays.encode(values, task.settings())


def decode_task(data: bytes) -> tuple[Task, ServerModel]:
    """Inverse of `encode_task`.

    Raises:
        DecodeError, ParameterError: it is none, or the model does not fit the plan.
    """
    values, settings = arrays.decode(data)
    task = Task.from_settings(settings)
    model = task.new_model(_under(_MODEL, values), _under(_OPTIMIZER, values))
    model.check(task.plan)
    return task, model


def _check_moments(
    optimizer: OptimizerSettings, moments: Mapping[str, Array], state: Mapping[str, Array]
) -> None:
    """Refuse what an optimizer could not go on with.

    Raises:
        DecodeError: not the state of such an optimizer on these tensors.
    """
    kinds = {"adam": ("first", "second"), "sgd": ("velocity",)}[optimizer.name]
    names = {name.partition("/")[2] for name in moments if name != "round"}
    wanted = {f"{kind}/{name}" for kind in kinds for name in names}
    wanted |= set(optimizer.build().state())  # of a fresh one: what belongs to no tensor
    if set(moments) != wanted or not names <= set(state):
        raise DecodeError(f"not the state of {optimizer.name} on the model's tensors")
    for name, value in moments.items():
        is_count = name == "round"
        shape = () if is_count else (state[name.partition("/")[2]].size,)
        kind = np.int64 if is_count else np.float64
        valid = value.shape == shape and value.dtype == kind and bool(np.isfinite(value).all())
        if not valid or (is_count and not 0 <= value < 1 << 32):
            raise DecodeError(f"{name!r} of the server optimizer's state is not valid")


def encode_model(model: ServerModel, version: int) -> bytes:
    """A model version with its optimizer's state."""
    values = {_MODEL + name: value for name, value in model.state.items()}
    values |= {_OPTIMIZER + name: value for name, value in model.optimizer.state().items()}
    return arrays.encode(values, {"version": version, "digest": model.digest().hex()})


def decode_model(task: Task, data: bytes) -> ServerModel:
    """Inverse of `encode_model`.

    Raises:
        DecodeError: damaged, or not of this task.
    """
    values, meta = arrays.decode(data)
    model = task.new_model(_under(_MODEL, values), _under(_OPTIMIZER, values))
    if model.digest().hex() != meta.get("digest"):
        raise DecodeError("the model does not have the digest it was stored with")
    return model


def _under(prefix: str, values: Mapping[str, Array]) -> dict[str, Array]:
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
